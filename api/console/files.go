package console

import (
	"embed"
	"io"
	"mime"
	"net/http"
	"path"
	"strings"
	"time"

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

// codings are the forms in which the build has written each file, the smallest first, with the ends of their names.
var codings = []struct{ name, ext string }{{"br", ".br"}, {"gzip", ".gz"}, {}}

// serveFile serves an asset, whose name changes with what it holds, or the page, which shows what its path asks for.
func (c *Console) serveFile(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", strings.Replace(policy, "connect-src 'self'", strings.Join(append([]string{"connect-src 'self'"}, c.cfg.S3...), " "), 1))
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
	name, missing := index, error(fleet.Unavailable("this scheduler was built without the console: build it with make", nil))
	if below, ok := strings.CutPrefix(r.URL.Path, assets); ok {
		name, missing = "assets/"+below, fleet.NotFound("file")
	}
	for _, coding := range codings {
		if coding.name != "" && !rest.Takes(r, coding.name) {
			continue
		}
		f, err := c.files.Open("dist/" + name + coding.ext)
		if err != nil {
			continue
		}
		defer func() { _ = f.Close() }() // it was only read
		h.Set("Content-Type", mime.TypeByExtension(path.Ext(name)))
		h.Set("Vary", "Accept-Encoding")
		if coding.name != "" {
			h.Set("Content-Encoding", coding.name)
		}
		if name != index {
			h.Set("Cache-Control", "public, max-age=31536000, immutable")
		}
		content, _ := f.(io.ReadSeeker) // as all that is embedded is
		http.ServeContent(w, r, name, time.Time{}, content)
		return
	}
	refuse(w, r, missing)
}
