package models

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	maxAnswer = 8 << 20 // bytes of the hub's answer
	maxFiles  = 10_000
	maxName   = 1024 // bytes of a file's name with its folders
	maxPart   = 255  // bytes of each of its parts
	maxDepth  = 16   // parts
	maxSize   = 1 << 45
)

// manifest is what a revision of a model consists of.
type manifest struct {
	commit string
	files  []file
	total  int64 // bytes of its blobs, each once
}

// file is a file of a model. Its digest is the SHA-256 of what the hub keeps as large files, else Git's SHA-1 of a blob, and
// names the blob, as in the caches of the hub's own clients.
type file struct {
	name, digest string
	size         int64
}

var (
	errAnswer  = errors.New("the hub's answer cannot be used")
	commitForm = regexp.MustCompile(`^[0-9a-f]{40}$`)
	sha256Form = regexp.MustCompile(`^[0-9a-f]{64}$`)
	unusable   = func(format string, args ...any) error {
		return fmt.Errorf("%w: "+format, append([]any{errAnswer}, args...)...)
	}
	controlChar = func(r rune) bool { return unicode.IsControl(r) || r == '\\' }
)

// readManifest reads the hub's answer about a revision. Nothing that it returns leads out of the model's folder.
func readManifest(body io.Reader) (*manifest, error) {
	var in struct {
		SHA      string `json:"sha"`
		Siblings []struct {
			Name   string `json:"rfilename"`
			Size   *int64 `json:"size"`
			BlobID string `json:"blobId"`
			LFS    *struct {
				SHA256 string `json:"sha256"`
				Size   *int64 `json:"size"`
			} `json:"lfs"`
		} `json:"siblings"`
	}
	text, err := io.ReadAll(io.LimitReader(body, maxAnswer+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxAnswer {
		return nil, unusable("it is larger than 8 MiB")
	}
	if err := json.Unmarshal(text, &in); err != nil {
		return nil, unusable("it is not what an answer is")
	}
	switch {
	case !commitForm.MatchString(in.SHA):
		return nil, unusable("it names no commit")
	case len(in.Siblings) == 0:
		return nil, unusable("the model has no files")
	case len(in.Siblings) > maxFiles:
		return nil, unusable("the model has more than %d files", maxFiles)
	}
	out, sizes := &manifest{commit: in.SHA}, map[string]int64{}
	for _, s := range in.Siblings {
		f := file{name: s.Name, digest: s.BlobID}
		size := s.Size
		if s.LFS != nil {
			f.digest, size = s.LFS.SHA256, s.LFS.Size
			if !sha256Form.MatchString(f.digest) {
				return nil, unusable("a file has no digest")
			}
		} else if !commitForm.MatchString(f.digest) {
			return nil, unusable("a file has no digest")
		}
		if size == nil || *size < 0 || *size > maxSize {
			return nil, unusable("a file has no size")
		}
		f.size = *size
		before, had := sizes[f.digest]
		switch {
		case !isFileName(f.name):
			return nil, unusable("a file has a name that is not allowed")
		case had && before != f.size:
			return nil, unusable("two files of one digest have two sizes")
		case !had:
			sizes[f.digest] = f.size
			out.total += f.size
		}
		out.files = append(out.files, f)
	}
	return out, out.checkNames()
}

// isFileName reports whether a name is one of a file below a folder.
func isFileName(name string) bool {
	if !fs.ValidPath(name) || name == "." || len(name) > maxName || !utf8.ValidString(name) || strings.ContainsFunc(name, controlChar) {
		return false
	}
	parts := strings.Split(name, "/")
	for _, part := range parts {
		if len(part) > maxPart {
			return false
		}
	}
	return len(parts) <= maxDepth
}

// checkNames refuses names that cannot be in one folder together.
func (m *manifest) checkNames() error {
	names := make(map[string]bool, len(m.files))
	for _, f := range m.files {
		if names[f.name] {
			return unusable("it names a file twice")
		}
		names[f.name] = true
	}
	for _, f := range m.files {
		for at := strings.LastIndexByte(f.name, '/'); at > 0; at = strings.LastIndexByte(f.name[:at], '/') {
			if names[f.name[:at]] {
				return unusable("a file is also a folder")
			}
		}
	}
	return nil
}

// largest is the file whose access tells of access to the model: of a gated one, the hub shows small files to everybody.
func (m *manifest) largest() file {
	out := m.files[0]
	for _, f := range m.files {
		if f.size > out.size {
			out = f
		}
	}
	return out
}
