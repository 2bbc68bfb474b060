package client

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
)

func TestReadFiles(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v2/pods/p/files" || r.URL.Query().Get("path") != "/a b/&c" || r.Header.Get("Accept") != "application/x-tar" {
			t.Errorf("%s %v", r.URL, r.Header)
		}
		w.Header().Set("Content-Type", "application/x-tar")
		_, _ = io.WriteString(w, "the stream")
	})
	stream, err := c.ReadFiles(context.Background(), "p", "/a b/&c")
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(stream)
	if err := stream.Close(); err != nil {
		t.Error(err)
	}
	if err != nil || string(text) != "the stream" {
		t.Errorf("%q %v", text, err)
	}
}

func TestReadFilesFails(t *testing.T) {
	var gone *Unreachable
	var problem *Problem
	tests := []struct {
		name string
		h    http.HandlerFunc
		is   func(error) bool
	}{
		{"broken off", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/x-tar")
			_, _ = io.WriteString(w, "half")
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}, func(err error) bool { return errors.As(err, &gone) }},
		{"refused", status(404, ""), func(err error) bool { return errors.As(err, &problem) && problem.Status == 404 }},
		{"something else", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") }, func(err error) bool {
			return err != nil && strings.Contains(err.Error(), "not a tar stream")
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			stream, err := serve(t, tt.h).ReadFiles(context.Background(), "p", "/x")
			if err == nil {
				_, err = io.ReadAll(stream)
				_ = stream.Close()
			}
			if !tt.is(err) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestWriteFiles(t *testing.T) {
	const size = 3 << 20 // more than the API takes of other bodies
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		if err != nil || n != size || r.Method != http.MethodPut || r.Header.Get("Content-Type") != "application/x-tar" || r.URL.Query().Get("path") != "/d" {
			t.Errorf("%s %s %d bytes %v %v", r.Method, r.URL, n, err, r.Header)
		}
		w.WriteHeader(http.StatusNoContent)
	})
	if err := c.WriteFiles(context.Background(), "p", "/d", io.NopCloser(io.LimitReader(zeros{}, size))); err != nil {
		t.Error(err)
	}
}

// TestWriteFilesRefused is refused before anything was sent, though there would be no end of it.
func TestWriteFilesRefused(t *testing.T) {
	in, out := io.Pipe()
	defer func() { _ = out.Close() }()
	var problem *Problem
	if err := serve(t, status(409, "")).WriteFiles(context.Background(), "p", "/d", in); !errors.As(err, &problem) || problem.Status != 409 {
		t.Errorf("got %v", err)
	}
	if _, err := out.Write([]byte("x")); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("the stream is still open: %v", err)
	}
}
