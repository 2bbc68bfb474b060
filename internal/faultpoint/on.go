//go:build faultpoints

package faultpoint

import (
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

var point struct {
	sync.Mutex
	want  string // NAME[:N] as it was seen last
	count int    // how often NAME was come to since
}

// Hit is a point with this name.
func Hit(name string) {
	point.Lock()
	defer point.Unlock()
	if file := os.Getenv("GANTRY_FAULTPOINT_LIST"); file != "" {
		note(file, name)
	}
	want := os.Getenv("GANTRY_FAULTPOINT")
	if file := os.Getenv("GANTRY_FAULTPOINT_FILE"); file != "" {
		text, _ := os.ReadFile(file) // there is none while nothing is asked for
		want = strings.TrimSpace(string(text))
	}
	if want != point.want {
		point.want, point.count = want, 0
	}
	if here, nth := parse(want); here == name {
		if point.count++; point.count == nth {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // nothing happens after it
		}
	}
}

// Before is the point before something: KIND.NAME.before.
func Before(kind, name string) { Hit(kind + "." + name + ".before") }

// After is the point after something: KIND.NAME.after.
func After(kind, name string) { Hit(kind + "." + name + ".after") }

func parse(want string) (name string, nth int) {
	name, text, counted := strings.Cut(want, ":")
	nth, err := strconv.Atoi(text)
	if !counted || err != nil {
		nth = 1
	}
	return name, nth
}

func note(file, name string) {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		panic(err) // a test that waits for the list would wait for ever
	}
	defer f.Close()
	if _, err := f.WriteString(name + "\n"); err != nil {
		panic(err)
	}
}
