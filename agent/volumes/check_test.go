package volumes

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"gantry/agent/volumes/volumestest"
	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/storage/volume"
)

// good is a volume that a host takes.
func good() *agentrpc.NetworkVolume {
	return &agentrpc.NetworkVolume{
		VolumeId: strings.Repeat("v", 64), Dir: strings.Repeat("a", 26), IdBase: fleet.VolumeIDsFirst, Ready: true, ReadOnly: true,
		Backend: &agentrpc.VolumeBackend{
			Id: "b-1", Kind: "cephfs", Server: "s", Options: "o", Monitors: []string{"m"}, FileSystem: "fs", User: "u", Key: "k", Path: "/v", SizedByHost: true,
		},
	}
}

// TestWhatAHostTakesOfAVolume: names become those of folders, and ids those of users, so that each is checked.
func TestWhatAHostTakesOfAVolume(t *testing.T) {
	got, err := Decode(good())
	want := &volume.Volume{
		ID: fleet.VolumeID(strings.Repeat("v", 64)), Dir: strings.Repeat("a", 26), IDBase: fleet.VolumeIDsFirst, Ready: true, ReadOnly: true,
		Backend: volume.Backend{
			ID: "b-1", Kind: fleet.BackendCeph, Server: "s", Options: "o", Monitors: []string{"m"}, FileSystem: "fs", User: "u", Key: "k", Path: "/v", SizedByHost: true,
		},
	}
	if err != nil || !cmp.Equal(got, want) {
		t.Errorf("%v, %v", cmp.Diff(want, got), err)
	}
	if got, err := Decode(nil); got != nil || err != nil {
		t.Errorf("of none: %v, %v", got, err)
	}
	for words, changes := range map[string][]func(*agentrpc.NetworkVolume){
		"": {
			func(v *agentrpc.NetworkVolume) { v.IdBase = fleet.VolumeIDsLast },
			func(v *agentrpc.NetworkVolume) { v.Backend.Kind = "nfs" }, func(v *agentrpc.NetworkVolume) { v.Backend.Kind = "local" },
		},
		"a backend of the name": {
			func(v *agentrpc.NetworkVolume) { v.Backend = nil }, func(v *agentrpc.NetworkVolume) { v.Backend.Id = "../up" },
		},
		"a backend of the kind": {func(v *agentrpc.NetworkVolume) { v.Backend.Kind = "tape" }},
		"a proper path": {
			func(v *agentrpc.NetworkVolume) { v.Backend.Path = "v" }, func(v *agentrpc.NetworkVolume) { v.Backend.Path = "/v/../w" },
			func(v *agentrpc.NetworkVolume) { v.Backend.Path = "/v\x00" },
		},
		"a proper id": {
			func(v *agentrpc.NetworkVolume) { v.VolumeId = "" }, func(v *agentrpc.NetworkVolume) { v.VolumeId += "v" },
			func(v *agentrpc.NetworkVolume) { v.VolumeId = "a/b" }, func(v *agentrpc.NetworkVolume) { v.VolumeId = "a\x00" },
		},
		"a directory": {func(v *agentrpc.NetworkVolume) { v.Dir = "../up" }},
		"owners": {
			func(v *agentrpc.NetworkVolume) { v.IdBase = fleet.VolumeIDsFirst - fleet.VolumeIDs }, func(v *agentrpc.NetworkVolume) { v.IdBase++ },
			func(v *agentrpc.NetworkVolume) {
				v.IdBase = fleet.VolumeIDsLast - fleet.VolumeIDsLast%fleet.VolumeIDs + fleet.VolumeIDs
			},
		},
	} {
		for i, change := range changes {
			v := good()
			change(v)
			if _, err := Decode(v); (err == nil) != (words == "") || err != nil && !strings.Contains(err.Error(), words) {
				t.Errorf("%q, %d: %v", words, i, err)
			}
		}
	}
}

// TestBackendsThatDoNotAnswer are named, and all others are not.
func TestBackendsThatDoNotAnswer(t *testing.T) {
	since := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	health := []volume.Health{{Backend: "well"}, {Backend: "down", Down: since, Text: "no route"}, {Backend: "far", Down: since, Text: strings.Repeat("ü", 400)}}
	got := Conditions(health)
	if len(got) != 2 || got[0].Code != "volume_backend_down" || got[1].Code != "volume_backend_down" ||
		got[0].Text != "the backend down of network volumes does not answer since 2026-01-02T03:04:05Z: no route" || len([]rune(got[1].Text)) != 300 {
		t.Errorf("told %v", got)
	}
	m := &volumestest.Mounts{}
	m.SetHealth(health...)
	if Dead(m, "well") || !Dead(m, "down") || Dead(m, "other") || Dead(nil, "down") {
		t.Error("which are dead is told otherwise")
	}
}

// broken are mounts of which one cannot be let go of.
type broken struct {
	*volumestest.Mounts
	list  error
	runs  chan struct{}     // receives when Run began
	calls []context.Context // of Detach
}

func (b *broken) Attached() ([]fleet.PodID, error) {
	return []fleet.PodID{"stuck", "gone", "gone"}, b.list
}

func (b *broken) Run(ctx context.Context) {
	b.runs <- struct{}{}
	<-ctx.Done()
	b.runs <- struct{}{}
}

func (b *broken) Detach(ctx context.Context, id fleet.PodID) error {
	b.calls = append(b.calls, ctx)
	if id == "stuck" {
		return errors.New("busy")
	}
	return nil
}

// TestWhatCannotBeLetGoOfHoldsUpNothing: the rest goes, each within its time, and none when the agent ends.
func TestWhatCannotBeLetGoOfHoldsUpNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		said := &bytes.Buffer{}
		m := &broken{Mounts: &volumestest.Mounts{}, runs: make(chan struct{}, 2)}
		k := &Keeper{
			Mounts: m, Known: func(fleet.PodID) bool { return false }, Swept: func() bool { return true }, Log: slog.New(slog.NewTextHandler(said, nil)),
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); k.Run(ctx) }()
		<-m.runs
		time.Sleep(sweepEvery)
		synctest.Wait()
		if text := said.String(); len(m.calls) != 3 || strings.Count(text, "released the network volume of an unknown pod") != 2 ||
			strings.Count(text, "release the network volume of an unknown pod") != 1 {
			t.Errorf("%d calls, said %s", len(m.calls), text)
		}
		for _, call := range m.calls {
			if until, ok := call.Deadline(); !ok || time.Until(until) != sweepDetach || call.Err() == nil {
				t.Errorf("a call ends at %v, %v, and is over: %v", until, ok, call.Err())
			}
		}
		said.Reset()
		m.list = errors.New("no list")
		k.sweep(ctx)
		if !strings.Contains(said.String(), "list attached") || len(m.calls) != 3 {
			t.Errorf("said %s", said)
		}
		m.list = nil
		cancel()
		<-ended
		if len(m.runs) != 1 {
			t.Error("the mounts are not looked after to the end")
		}
		if k.sweep(ctx); len(m.calls) != 3 {
			t.Error("the end of the agent lets go of what is attached")
		}
	})
}
