package fleet

import "testing"

func TestMountPaths(t *testing.T) {
	const unclean = "must be clean: without '.', '..', empty parts and a slash at the end"
	for p, want := range map[string]string{
		"/workspace": "", "/data/deep": "", "/libs": "", "/var/lib": "", "/usrlocal": "",
		"": "must be absolute", "data": "must be absolute", "../etc": "must be absolute",
		"/": "must not be /", "//": "must not be /", "/a/..": "must not be /",
		"/data/": unclean, "/a/../etc": unclean, "/a//b": unclean, "/./a": unclean,
		"/a\x00b": "must not contain NUL", "/\xff": "must not contain NUL",
		"/etc": "must not be a system path", "/proc/1": "must not be a system path", "/lib32/x": "must not be a system path",
		"/var/run/docker.sock": "must not be a system path",
	} {
		if got := MountPathFault(p); got != want {
			t.Errorf("%q: %q, expected %q", p, got, want)
		}
	}
}
