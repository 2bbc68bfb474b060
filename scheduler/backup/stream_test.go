package backup_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"gantry/scheduler/backup"
)

// stuck takes nothing until it is let go.
type stuck struct{ free chan struct{} }

func (s stuck) Write(p []byte) (int, error) { <-s.free; return len(p), nil }

func endless(w io.Writer) error {
	for {
		if _, err := w.Write(make([]byte, 1<<20)); err != nil {
			return err
		}
	}
}

func TestStreamFreesWhatItReadsWhileTheClientHangs(t *testing.T) {
	deposed := errors.New("deposed")
	for name, end := range map[string]func(context.CancelCauseFunc){
		"leadership ends": func(cancel context.CancelCauseFunc) { cancel(deposed) },
		"a stall":         func(context.CancelCauseFunc) { time.Sleep(time.Minute) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				client := stuck{make(chan struct{})}
				freed, done := make(chan struct{}), make(chan error, 1)
				go func() {
					done <- backup.Stream(ctx, client, time.Minute, func(w io.Writer) error {
						defer close(freed)
						return endless(w)
					})
				}()
				synctest.Wait()
				end(cancel)
				synctest.Wait()
				select {
				case <-freed:
				default:
					t.Error("the state is still being read")
				}
				close(client.free)
				if err := <-done; err == nil {
					t.Error("a cut snapshot was reported as whole")
				}
			})
		})
	}
}

func TestStreamPassesEverythingOn(t *testing.T) {
	var out bytes.Buffer
	text := bytes.Repeat([]byte("state"), 100_000)
	err := backup.Stream(t.Context(), &out, time.Minute, func(w io.Writer) error {
		_, err := w.Write(text)
		return err
	})
	if err != nil || !bytes.Equal(out.Bytes(), text) {
		t.Errorf("%d bytes of %d: %v", out.Len(), len(text), err)
	}
	broken := errors.New("broken")
	if err := backup.Stream(t.Context(), io.Discard, time.Minute, func(io.Writer) error { return broken }); !errors.Is(err, broken) {
		t.Errorf("an error of the state: %v", err)
	}
	if err := backup.Stream(t.Context(), failing{broken}, time.Minute, endless); !errors.Is(err, broken) {
		t.Errorf("an error of the client: %v", err)
	}
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }
