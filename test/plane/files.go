package plane

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"path"
	"slices"
	"strings"

	"gantry/fleet"
)

func (h *hosts) putFile(pod fleet.PodID, name, text string) {
	h.change(func() {
		if h.files[pod] == nil {
			h.files[pod] = map[string]string{}
		}
		h.files[pod][path.Clean(name)] = text
	})
}

func (h *hosts) file(pod fleet.PodID, name string) (string, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	text, ok := h.files[pod][path.Clean(name)]
	return text, ok
}

// ReadFiles packs a file, or all files below a folder, with names relative to its parent.
func (h *hosts) ReadFiles(_ context.Context, host fleet.HostID, pod fleet.PodID, name string) (io.ReadCloser, error) {
	if err := h.reach(host); err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	name = path.Clean(name)
	var found []string
	for file := range h.files[pod] {
		if file == name || strings.HasPrefix(file, strings.TrimSuffix(name, "/")+"/") {
			found = append(found, file)
		}
	}
	if len(found) == 0 {
		return nil, fleet.NotFound("file")
	}
	slices.Sort(found)
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, file := range found {
		text := h.files[pod][file]
		base := strings.TrimPrefix(strings.TrimPrefix(file, path.Dir(name)), "/")
		if err := w.WriteHeader(&tar.Header{Name: base, Mode: 0o644, Size: int64(len(text)), Format: tar.FormatPAX}); err != nil {
			return nil, err
		}
		if _, err := io.WriteString(w, text); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return io.NopCloser(&out), nil
}

// Prefetch reports whether the host is there; no image comes of it.
func (h *hosts) Prefetch(host fleet.HostID, image string, _ ...string) bool {
	h.change(func() { h.fetched = append(h.fetched, string(host)+" "+image) })
	return h.reach(host) == nil
}

// WriteFiles unpacks a tar stream below a folder. What was unpacked before the stream turned out to be
// broken stays, as on a host.
func (h *hosts) WriteFiles(_ context.Context, host fleet.HostID, pod fleet.PodID, folder string, stream io.Reader) error {
	if err := h.reach(host); err != nil {
		return err
	}
	r := tar.NewReader(stream)
	for {
		entry, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return &fleet.Error{Code: fleet.CodeInvalid, Msg: "entry 1 of the archive: it is broken", Err: err}
		}
		text, err := io.ReadAll(r)
		if err != nil {
			return &fleet.Error{Code: fleet.CodeInvalid, Msg: "entry 1 of the archive: it is broken", Err: err}
		}
		h.putFile(pod, path.Join(folder, path.Clean("/"+entry.Name)), string(text))
	}
}
