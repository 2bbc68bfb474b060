package console

import (
	"embed"
	"errors"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"strconv"
	"strings"

	"gantry/api/rest"
	"gantry/fleet"
)

//go:embed all:dist
var dist embed.FS

const (
	policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; connect-src 'self'; " +
		"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
	assets = root + "/assets/"
	index  = "index.html"
)

// file is a file in the forms in which the build has written it, by content coding; "" is the file itself.
type file map[string][]byte

// codings are what a file may be compressed with, the smallest first, with the ends of their names.
var codings = []struct{ name, ext string }{{"br", ".br"}, {"gzip", ".gz"}}

// load reads the files of a build, by their paths below dist.
func load(from fs.FS) (map[string]file, error) {
	out := map[string]file{}
	err := fs.WalkDir(from, "dist", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || d.Name() == ".gitignore" {
			return err
		}
		data, err := fs.ReadFile(from, name)
		if err != nil {
			return err
		}
		name, coding := strings.TrimPrefix(name, "dist/"), ""
		for _, c := range codings {
			if short, ok := strings.CutSuffix(name, c.ext); ok {
				name, coding = short, c.name
			}
		}
		if out[name] == nil {
			out[name] = file{}
		}
		out[name][coding] = data
		return nil
	})
	for name, f := range out {
		if f[""] == nil {
			err = errors.Join(err, errors.New(name+" is there in a compressed form only"))
		}
	}
	return out, err
}

// serveFile serves an asset, whose name changes with what it holds, or the page, which shows what its path asks for.
func (c *Console) serveFile(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-cache")
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		h.Set("Allow", "GET, HEAD")
		refuse(w, r, &fleet.Error{Code: fleet.CodeMethod, Msg: "the console's files can only be read"})
		return
	}
	name, isAsset := index, false
	if below, ok := strings.CutPrefix(r.URL.Path, assets); ok {
		name, isAsset = "assets/"+below, true
	}
	f, ok := c.files[name]
	switch {
	case !ok && isAsset:
		refuse(w, r, fleet.NotFound("file"))
		return
	case !ok:
		http.Error(w, "this scheduler was built without the console: build it with make", http.StatusServiceUnavailable)
		return
	case isAsset:
		h.Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	h.Set("Content-Type", mime.TypeByExtension(path.Ext(name)))
	h.Set("Vary", "Accept-Encoding")
	data := f[""]
	for _, coding := range codings {
		if packed := f[coding.name]; packed != nil && rest.Takes(r, coding.name) {
			h.Set("Content-Encoding", coding.name)
			data = packed
			break
		}
	}
	h.Set("Content-Length", strconv.Itoa(len(data)))
	w.WriteHeader(http.StatusOK)
	if r.Method == http.MethodGet {
		_, _ = w.Write(data) // a client that left is not told
	}
}
