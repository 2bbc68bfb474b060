package s3

import (
	"net/http"
	"path"
	"strings"
)

// hidden is the folder of a volume that holds what is being written.
const hidden = ".s3compat_uploads"

// target is the place that a key names in a volume.
type target struct {
	key    string
	path   string // in the folder, without a slash at its end
	folder bool   // the key ends with a slash
}

func (t target) parent() string { return path.Dir(t.path) }

// parseKey checks a key.
func parseKey(key string) (target, error) {
	if len(key) > maxKey {
		return target{}, refuse(http.StatusBadRequest, "KeyTooLongError", "Your key is longer than 1024 bytes.")
	}
	t := target{key: key, path: strings.TrimSuffix(key, "/"), folder: strings.HasSuffix(key, "/")}
	if strings.ContainsRune(key, 0) {
		return target{}, invalid("A key must not contain NUL.")
	}
	first := true
	for part := range strings.SplitSeq(t.path, "/") {
		switch {
		case part == "":
			return target{}, invalid("A key is a path in the volume: it must not begin with a slash or hold two in a row.")
		case part == "." || part == "..":
			return target{}, invalid(`A key is a path in the volume: "." and ".." cannot be parts of it.`)
		case len(part) > maxName:
			return target{}, refuse(http.StatusBadRequest, "KeyTooLongError", "A part of the key between slashes is longer than 255 bytes.")
		case first && part == hidden:
			return target{}, invalid("Keys below " + hidden + "/ are reserved.")
		}
		first = false
	}
	return t, nil
}

// addressed splits the path and host of a request into bucket and key.
func (h *Handler) addressed(host, urlPath string) (bucket, key string) {
	host = strings.ToLower(host)
	if i := strings.LastIndexByte(host, ':'); i >= 0 && !strings.HasSuffix(host, "]") {
		host = host[:i]
	}
	urlPath = strings.TrimPrefix(urlPath, "/")
	for _, domain := range h.domains {
		if sub, found := strings.CutSuffix(host, "."+domain); found && sub != "" && !strings.Contains(sub, ".") {
			return sub, urlPath
		}
	}
	bucket, key, _ = strings.Cut(urlPath, "/")
	return bucket, key
}
