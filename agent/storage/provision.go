package storage

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"gantry/internal/ipc"
	"gantry/storage/disk"
	"gantry/storage/helper"
	"gantry/storage/provision"
	"gantry/storage/volume"
)

// Helpers is the Provisioner of a real host. It does everything in helper processes.
type Helpers struct {
	// Caller starts helper processes that have HelperFuncs; a *helper.Caller.
	Caller interface {
		Call(ctx context.Context, group, op string, in, out any) error
	}
	// Root mounts a backend for this host alone, and returns its root.
	Root func(ctx context.Context, b volume.Backend) (string, error)
}

const (
	sliceLimit      = time.Minute // of one helper process that works through many files
	removePerSecond = 1000        // files, so that pods do not notice
	removeSlice     = 20_000
	lookPerSecond   = 5000
	lookSlice       = 100_000
)

// Operations of the helper process.
const (
	opMake    = "provision.make"
	opRemove  = "provision.remove"
	opDelete  = "provision.delete"
	opMeasure = "provision.measure"
	opRestore = "provision.restore"
)

// provisionIn is what goes to the helper process.
type provisionIn struct {
	Root     provision.Root     `json:"root"`
	Volume   provision.Volume   `json:"volume"`
	Progress provision.Progress `json:"progress"`
	Most     int                `json:"most"`
}

// provisionOut is what comes back.
type provisionOut struct {
	Done     bool               `json:"done"`
	Bytes    int64              `json:"bytes"`
	Progress provision.Progress `json:"progress"`
}

// HelperFuncs are the operations that Helpers does in helper processes.
func HelperFuncs() map[string]helper.Func {
	out := map[string]helper.Func{}
	for name, f := range map[string]func(ctx context.Context, in provisionIn) (provisionOut, error){
		opMake: func(ctx context.Context, in provisionIn) (provisionOut, error) {
			return provisionOut{}, provision.Make(ctx, in.Root, in.Volume)
		},
		opRemove: func(ctx context.Context, in provisionIn) (provisionOut, error) {
			return provisionOut{}, provision.Remove(ctx, in.Root, in.Volume.Dir)
		},
		opDelete:  deleteSome,
		opMeasure: measureSome,
		opRestore: func(ctx context.Context, in provisionIn) (provisionOut, error) {
			return provisionOut{}, provision.Restore(ctx, in.Root)
		},
	} {
		out[name] = func(ctx context.Context, text json.RawMessage) (any, error) {
			var in provisionIn
			if err := json.Unmarshal(text, &in); err != nil {
				return nil, err
			}
			done, err := f(ctx, in)
			return done, markedError(err)
		}
	}
	return out
}

// Kinds of errors that operators have to see to.
const (
	kindNoMarker    = "no marker"
	kindOtherMarker = "other marker"
	kindBusy        = "busy"
	kindRemoved     = "removed"
)

// markedError keeps such an error's kind on its way out of the helper process.
func markedError(err error) error {
	switch {
	case errors.Is(err, provision.ErrNoMarker):
		return ipc.Mark(kindNoMarker, err)
	case errors.Is(err, provision.ErrOtherMarker):
		return ipc.Mark(kindOtherMarker, err)
	case errors.Is(err, disk.ErrBusy):
		return ipc.Mark(kindBusy, err)
	case errors.Is(err, provision.ErrRemoved):
		return ipc.Mark(kindRemoved, err)
	}
	return err
}

// deleteSome deletes some of what removed volumes hold. It is done when nothing is left of the volume that is named.
func deleteSome(ctx context.Context, in provisionIn) (out provisionOut, err error) {
	if out.Done, err = provision.Gone(ctx, in.Root, in.Volume.Dir); out.Done || err != nil {
		return out, err
	}
	_, err = provision.RemoveSome(ctx, in.Root, in.Most)
	return out, err
}

func measureSome(ctx context.Context, in provisionIn) (out provisionOut, err error) {
	if provision.Enforced(in.Root) {
		out.Bytes, err = provision.Used(ctx, in.Root, in.Volume.Dir)
		out.Done = err == nil
		return out, err
	}
	out.Progress, out.Done, err = provision.Measure(ctx, in.Root, in.Volume.Dir, in.Progress, in.Most)
	out.Bytes = out.Progress.Bytes
	return out, err
}

// call does an operation on a backend in a helper process.
func (p *Helpers) call(ctx context.Context, op string, root Root, in provisionIn) (out provisionOut, err error) {
	in.Root = provision.Root{
		Kind: string(root.Backend.Kind), Backend: string(root.Backend.ID), Dir: root.OwnDir, Sized: root.OwnDir != "", Fresh: root.Fresh,
		PerSecond: in.Root.PerSecond,
	}
	if root.OwnDir == "" {
		if in.Root.Dir, err = p.Root(ctx, root.Backend); err != nil {
			return out, err
		}
	}
	// A group of its own: what works here takes nobody's place who mounts volumes for pods.
	err = p.Caller.Call(ctx, "storage/"+string(root.Backend.ID), op, in, &out)
	return out, provisionError(err)
}

// provisionError words what an operator has to see to.
func provisionError(err error) error {
	sentence := ""
	switch kind := ipc.Kind(err); {
	case kind == kindNoMarker:
		sentence = "the volume's storage is not there: the marker of its backend is missing"
	case kind == kindOtherMarker:
		sentence = "the volume's storage is not there: the marker is that of another backend"
	case kind == kindRemoved: // by a scheduler that had gone on from where this one was restored
		sentence = "the volume was deleted, and what it held is gone: delete it again"
	case kind == kindBusy:
		sentence = "the volume is in use on its storage host, which cannot make it larger or remove it meanwhile"
	case errors.Is(err, helper.ErrStuck), errors.Is(err, helper.ErrTooManyStuck), errors.Is(err, unix.ETIMEDOUT), errors.Is(err, unix.EIO):
		sentence = "the volume's storage does not answer"
	case errors.Is(err, unix.ENOSPC):
		sentence = "the volume's storage is full"
	default:
		return err
	}
	return &volume.Error{Sentence: sentence, Err: err}
}

// asked is what the volume shall be.
func asked(v Volume) provision.Volume {
	return provision.Volume{Dir: v.Dir, SizeGB: v.SizeGB, IDBase: v.IDBase}
}

// Make implements Provisioner.
func (p *Helpers) Make(ctx context.Context, root Root, v Volume) error {
	_, err := p.call(ctx, opMake, root, provisionIn{Volume: asked(v)})
	return err
}

// Restore implements Provisioner.
func (p *Helpers) Restore(ctx context.Context, root Root) error {
	_, err := p.call(ctx, opRestore, root, provisionIn{})
	return err
}

// Remove implements Provisioner.
func (p *Helpers) Remove(ctx context.Context, root Root, v Volume) error {
	in := provisionIn{Volume: asked(v), Most: removeSlice}
	in.Root.PerSecond = removePerSecond
	_, err := p.call(ctx, opRemove, root, in)
	if root.Fresh && ipc.Kind(err) == kindNoMarker { // nobody ever worked there: a volume makes it the backend's
		in.Volume.SizeGB = max(in.Volume.SizeGB, 1)
		if _, err = p.call(ctx, opMake, root, in); err == nil {
			_, err = p.call(ctx, opRemove, root, in)
		}
	}
	if err != nil {
		return err
	}
	return p.slices(ctx, opDelete, root, &in, nil)
}

// Used implements Provisioner.
func (p *Helpers) Used(ctx context.Context, root Root, v Volume) (bytes int64, err error) {
	in := provisionIn{Volume: asked(v), Most: lookSlice}
	in.Root.PerSecond = lookPerSecond
	err = p.slices(ctx, opMeasure, root, &in, &bytes)
	return bytes, err
}

// slices repeats an operation, each time in a process of its own, until it is done.
func (p *Helpers) slices(ctx context.Context, op string, root Root, in *provisionIn, bytes *int64) error {
	for {
		limited, cancel := context.WithTimeout(ctx, sliceLimit)
		out, err := p.call(limited, op, root, *in)
		cancel()
		if err != nil {
			return err
		}
		if bytes != nil {
			*bytes = out.Bytes
		}
		if in.Progress = out.Progress; out.Done {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
}
