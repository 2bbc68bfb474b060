package rest

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"gantry/api/admin"
	"gantry/api/auth"
	"gantry/api/limit"
	"gantry/api/problem"
	"gantry/api/v2"
	"gantry/fleet"
)

// BackupService saves the state.
type BackupService interface {
	// NoteBackup remembers of when a back-up is that is whole where it is kept.
	NoteBackup(ctx context.Context, savedAt time.Time) (time.Time, error)
	// SaveSnapshot writes a copy of the whole state.
	SaveSnapshot(ctx context.Context, w io.Writer) error
}

const snapshotMediaType = "application/octet-stream"

func (a *API) registerSnapshot() {
	rt := route{
		method: http.MethodGet, path: "/admin/v1/snapshot", id: "saveSnapshot", tag: "Operators", summary: "Save a copy of the state",
		text: "Streams a copy of everything that was acknowledged before the call; see docs/operations.md for how a cluster is restored from it. It ends with " +
			"a checksum; an answer without its end was cut. It holds what keys and credentials were made from, sealed or hashed: keep it as you keep keys.\n\n" +
			"429: the account has more than 16 transfers under way.",
		scope: auth.Write(fleet.GroupAdmin), limit: limit.PerAccount, status: http.StatusOK,
	}
	op := a.declare(rt)
	op.Responses["200"] = &huma.Response{Description: "The copy.", Content: map[string]*huma.MediaType{
		snapshotMediaType: {Schema: &huma.Schema{Type: huma.TypeString, Format: "binary"}, Example: "a snapshot"},
	}}
	a.serve(op, rt, a.saveSnapshot)
	on(a, route{
		method: http.MethodPost, path: "/admin/v1/backups", id: "noteBackup", tag: "Operators", summary: "Tell of a back-up",
		text: "Tells the cluster that a copy of the state is whole where it is kept, for the metric and the alert of the newest back-up's age. Answers of when the newest is. " +
			"An older one than that changes nothing.",
		scope: auth.Write(fleet.GroupAdmin), limit: limit.PerAccount, status: http.StatusOK, in: admin.Backup{SavedAt: exampleTime(60)}, out: admin.Backup{SavedAt: exampleTime(60)},
	}, func(ctx context.Context, svc BackupService, _ *call, in *admin.Backup) (*admin.Backup, error) {
		newest, err := svc.NoteBackup(ctx, in.SavedAt.Time)
		return &admin.Backup{SavedAt: v2.At(newest)}, err
	})
}

func (a *API) saveSnapshot(ctx context.Context, c *call) error {
	t, inner, end, err := a.transferring(ctx, c)
	if err != nil {
		return err
	}
	defer end()
	_ = t.rc.SetReadDeadline(time.Time{}) // else the server ends the request after its read limit
	_ = t.rc.SetWriteDeadline(time.Now().Add(t.stall + streamWrite))
	out := &snapshotWriter{c: c, t: t, name: "gantry-" + a.now().UTC().Format("20060102T150405Z") + ".snapshot"}
	err = part[BackupService](a).SaveSnapshot(inner, out)
	switch {
	case err == nil && !out.begun:
		return errors.New("the snapshot is empty")
	case err == nil || c.r.Method == http.MethodHead && out.begun:
		return nil
	case out.begun:
		if !out.left {
			a.log.Warn("snapshot download was interrupted", "request", problem.RequestID(ctx), "err", err)
		}
		panic(http.ErrAbortHandler) // so that it cannot be taken for a whole one
	}
	return err
}

var errReaderLeft = errors.New("nobody reads the snapshot any more")

// snapshotWriter sends what is written to it, for as long as the reader takes it.
type snapshotWriter struct {
	c     *call
	t     *transfer
	name  string
	begun bool
	left  bool // the reader is gone, or wants no more than the header
}

// Write sends the next piece.
func (w *snapshotWriter) Write(p []byte) (int, error) {
	if !w.begun {
		w.begun = true
		h := w.c.w.Header()
		h.Set("Content-Type", snapshotMediaType)
		h.Set("Content-Disposition", `attachment; filename="`+w.name+`"`)
		h.Set("Cache-Control", "no-store")
		h.Set("X-Content-Type-Options", "nosniff")
		w.c.w.WriteHeader(http.StatusOK)
	}
	w.t.idle.Reset(w.t.stall)
	_ = w.t.rc.SetWriteDeadline(time.Now().Add(streamWrite))
	n, err := w.c.w.Write(p)
	if err != nil || w.c.r.Method == http.MethodHead {
		w.left = true
		return n, errReaderLeft
	}
	return n, nil
}
