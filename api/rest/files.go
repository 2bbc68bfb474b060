package rest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"gantry/api/limit"
	"gantry/api/problem"
	"gantry/fleet"
)

const (
	tarMediaType = "application/x-tar"
	maxTransfers = 16 // of files, per account
	transferSize = 64 << 10
)

func (a *API) registerFiles() {
	path := func(text string) *huma.Param {
		p := queryParam("path", text, huma.Schema{
			Type: huma.TypeString, Pattern: `^/[^\x00]*$`, PatternDescription: "an absolute path without NUL", Examples: []any{"/workspace/model"},
		})
		p.Required = true
		return p
	}
	const both = "\n\n409: the pod does not run. 429: the account has more than 16 transfers under way. 503: the pod's host cannot be reached."
	read := route{
		method: http.MethodGet, path: "/v2/pods/{id}/files", id: "readPodFiles", tag: "Pods", summary: "Copy files out of a pod",
		text: "Streams a file, or a folder with everything in it, of a running pod's container as a tar archive; names are relative to the parent of path. An " +
			"answer that ends without the archive's end was cut." + both,
		scope: insideScope, limit: limit.PerAccount, status: http.StatusOK, errors: []int{http.StatusConflict},
		params: []*huma.Param{podIDParam(), path("File or folder in the container.")},
	}
	op := a.declare(read)
	archive := &huma.MediaType{Schema: &huma.Schema{Type: huma.TypeString, Format: "binary"}, Example: "a tar archive"}
	op.Responses["200"] = &huma.Response{Description: "The archive.", Content: map[string]*huma.MediaType{tarMediaType: archive}}
	a.serve(op, read, a.readFiles)

	write := route{
		method: http.MethodPut, path: "/v2/pods/{id}/files", id: "writePodFiles", tag: "Pods", summary: "Copy files into a pod",
		text: "Unpacks a tar archive of any size below a folder of a running pod's container. What was unpacked before a failure stays.\n\n" +
			"400: the archive is broken, or an entry of it breaks a rule, which the detail says, or it came too slowly. 415: the content type is not application/x-tar." + both,
		scope: insideScope, limit: limit.PerAccount, status: http.StatusNoContent,
		errors: []int{http.StatusConflict, http.StatusUnsupportedMediaType},
		params: []*huma.Param{podIDParam(), path("Folder in the container.")},
	}
	op = a.declare(write)
	op.Responses["415"].Description = "The content type is not application/x-tar."
	op.RequestBody = &huma.RequestBody{Required: true, Description: "A tar archive.", Content: map[string]*huma.MediaType{tarMediaType: archive}}
	a.serve(op, write, a.writeFiles)
}

// transfer is a copy of files that goes on for as long as it makes progress.
type transfer struct {
	rc     *http.ResponseController
	stall  time.Duration
	cancel context.CancelFunc
	idle   *time.Timer
}

// transferring begins a transfer of the caller's. Its context ends with end, with the API and when no progress is made.
// Errors: CodeLimited.
func (a *API) transferring(ctx context.Context, c *call) (t *transfer, inner context.Context, end func(), err error) {
	if !a.transfers.take(c.who.Account) {
		return nil, nil, nil, &fleet.Error{Code: fleet.CodeLimited, Msg: fmt.Sprintf("the account has more than %d transfers under way", maxTransfers)}
	}
	inner, cancel := context.WithCancel(ctx)
	t = &transfer{rc: http.NewResponseController(c.w), stall: a.pace.stall, cancel: cancel, idle: time.AfterFunc(a.pace.stall, cancel)}
	watched := make(chan struct{})
	go func() { // ends with the transfer, and is waited for
		defer close(watched)
		select {
		case <-a.closed:
			cancel()
		case <-inner.Done():
		}
	}()
	return t, inner, func() {
		t.idle.Stop()
		cancel()
		<-watched
		a.transfers.give(c.who.Account)
	}, nil
}

// progress gives the transfer and its client time for the next piece; only tests write to something else than a
// connection, which has no deadlines.
func (t *transfer) progress() {
	t.idle.Reset(t.stall)
	next := time.Now().Add(streamWrite)
	_, _ = t.rc.SetReadDeadline(next), t.rc.SetWriteDeadline(next.Add(t.stall))
}

func (a *API) readFiles(ctx context.Context, c *call) error {
	id, err := pathID[fleet.PodID](c, "pod")
	if err != nil {
		return err
	}
	t, inner, end, err := a.transferring(ctx, c)
	if err != nil {
		return err
	}
	defer end()
	_ = t.rc.SetReadDeadline(time.Time{}) // else the server ends the request after its read limit
	src, err := part[InsideService](a).ReadPodFiles(inner, c.who, id, c.args.text("path"))
	if err != nil {
		return err
	}
	closing := context.AfterFunc(inner, func() { _ = src.Close() }) // ends a read that waits
	defer func() {
		if closing() {
			_ = src.Close()
		}
	}()
	begun, err := t.copyOut(c, src)
	if err != nil && begun {
		a.log.Warn("copy of a pod's files was interrupted", "request", problem.RequestID(ctx), "pod", id, "err", err)
		panic(http.ErrAbortHandler) // so that it cannot be taken for a whole one
	}
	return err
}

// copyOut sends what comes from src. It returns whether the answer was begun, and the error of src.
func (t *transfer) copyOut(c *call, src io.Reader) (begun bool, err error) {
	buf := make([]byte, transferSize)
	for {
		n, err := src.Read(buf)
		if err != nil && !errors.Is(err, io.EOF) {
			return begun, err
		}
		if !begun {
			begun = true
			h := c.w.Header()
			h.Set("Content-Type", tarMediaType)
			h.Set("Cache-Control", "no-store")
			h.Set("X-Content-Type-Options", "nosniff")
			c.w.WriteHeader(http.StatusOK)
		}
		t.idle.Reset(t.stall)
		_ = t.rc.SetWriteDeadline(time.Now().Add(streamWrite))
		if _, werr := c.w.Write(buf[:n]); werr != nil || c.r.Method == http.MethodHead {
			return true, nil //nolint:nilerr // the reader is gone, or wants no more
		}
		if err != nil {
			return true, nil //nolint:nilerr // the end
		}
		if err := t.rc.Flush(); err != nil {
			return true, nil //nolint:nilerr // the reader is gone
		}
	}
}

func (a *API) writeFiles(ctx context.Context, c *call) error {
	id, err := pathID[fleet.PodID](c, "pod")
	if err != nil {
		return err
	}
	if err := checkTarType(c.r); err != nil {
		return err
	}
	t, inner, end, err := a.transferring(ctx, c)
	if err != nil {
		return err
	}
	defer end()
	t.progress()
	cut := context.AfterFunc(inner, func() { _ = t.rc.SetReadDeadline(time.Unix(1, 0)) }) // ends a read that waits
	in := &upload{body: c.r.Body, t: t}
	err = part[InsideService](a).WritePodFiles(inner, c.who, id, c.args.text("path"), in)
	cut()
	t.progress() // for the answer
	switch {
	case err != nil && inner.Err() != nil:
		return fleet.Unavailable("the transfer was cut", err)
	case err != nil && in.late.Load():
		return malformed("the request body did not arrive in time")
	case fleet.CodeOf(err) == fleet.CodeInvalid: // the host says which entry of the archive breaks which rule
		return archiveFault(err)
	case err != nil:
		return err
	}
	c.w.WriteHeader(http.StatusNoContent)
	return nil
}

// archiveFault is the answer to an archive that a host did not take.
func archiveFault(err error) error {
	var e *fleet.Error
	if !errors.As(err, &e) || len(e.Details) > 0 {
		return err // of a parameter
	}
	return &fleet.Error{Code: fleet.CodeMalformed, Msg: e.Msg, Err: err}
}

func checkTarType(r *http.Request) error {
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || kind != tarMediaType {
		return &fleet.Error{Code: fleet.CodeMediaType, Msg: "the content type must be " + tarMediaType}
	}
	if enc := r.Header.Get("Content-Encoding"); enc != "" && !strings.EqualFold(enc, "identity") {
		return &fleet.Error{Code: fleet.CodeMediaType, Msg: "the content must not be encoded"}
	}
	return nil
}

// upload is a body that may take as long as it comes on.
type upload struct {
	body io.Reader
	t    *transfer
	late atomic.Bool // it did not come on, or broke off
}

// Read reads the next piece and gives time for the one after it.
func (u *upload) Read(p []byte) (int, error) {
	n, err := u.body.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		u.late.Store(true)
		return n, err
	}
	if n > 0 {
		u.t.progress()
	}
	return n, err
}
