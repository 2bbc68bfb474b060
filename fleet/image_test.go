package fleet

import (
	"strings"
	"testing"
)

func TestImageName(t *testing.T) {
	digest := "sha256:" + strings.Repeat("a", 64)
	for ref, want := range map[string]string{
		"busybox":                         "docker.io/library/busybox:latest",
		"busybox:1":                       "docker.io/library/busybox:1",
		"me/app":                          "docker.io/me/app:latest",
		"docker.io/busybox":               "docker.io/library/busybox:latest",
		"index.docker.io/library/busybox": "docker.io/library/busybox:latest",
		"ghcr.io/x/y:1":                   "ghcr.io/x/y:1",
		"localhost/x":                     "localhost/x:latest",
		"127.0.0.1:5000/x":                "127.0.0.1:5000/x:latest",
		"[::1]:5000/x:1":                  "[::1]:5000/x:1",
		"busybox:1@" + digest:             "docker.io/library/busybox@" + digest,
		"r.io:5000/a/b@" + digest:         "r.io:5000/a/b@" + digest,
		"":                                "",
		"A B":                             "",
		"example/UPPER":                   "",
		"user:secret@host/x":              "",
		"x@sha256:12":                     "",
		"x:":                              "",
		"/x":                              "",
	} {
		got, ok := ImageName(ref)
		if ok != (want != "") || ok && got != want || !ok && got != ref {
			t.Errorf("%q is %q, %t; want %q", ref, got, ok, want)
		}
	}
}
