package state

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"gantry/fleet"
)

func TestTLSFiles(t *testing.T) {
	w := newWorld(t).settle()
	file := func(name string, sealed int) PutTLSFile {
		return PutTLSFile{fleet.TLSFile{Name: name, Sealed: make([]byte, sealed), UpdatedAt: at(1)}}
	}
	for what, cmd := range map[string]PutTLSFile{
		"no name":     file("", 1),
		"a long name": file(strings.Repeat("n", 513), 1),
		"odd bytes":   file("\xff", 1),
		"too much":    file("a", 64<<10+1),
	} {
		t.Run(what, func(t *testing.T) { w.refused(fleet.CodeInvalid, cmd) })
	}
	w.must(file("a/1", 1), file("a/2", 1), file("b", 1), file("a/1", 2), file("none", 0))
	for i := range maxTLSFiles - 3 {
		w.must(file(fmt.Sprintf("c/%d", i), 1))
	}
	w.refused(fleet.CodeConflictRule, file("one more", 1))
	w.must(file("b", 0), file("one more", 64<<10), file("a/2", 2))
	w.view(func(v *View) {
		f, ok := v.TLSFile("a/1")
		if !ok || len(f.Sealed) != 2 {
			t.Errorf("got %+v %t", f, ok)
		}
		f.Sealed[0]++
		if again, _ := v.TLSFile("a/1"); again.Sealed[0] != 0 {
			t.Error("a file is shared with the tables")
		}
		if _, ok := v.TLSFile("b"); ok {
			t.Error("a deleted file is there")
		}
		if names := v.TLSFiles("a/"); !slices.Equal(names, []string{"a/1", "a/2"}) {
			t.Errorf("got %q", names)
		}
	})
	w.check()
}
