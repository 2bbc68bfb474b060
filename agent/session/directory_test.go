package session

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestDirectoryTriesAllItKnowsAndForgetsNothingNamed(t *testing.T) {
	dir := t.TempDir()
	if _, err := OpenDirectory(dir, nil); err == nil {
		t.Error("a directory without any address was opened")
	}
	for _, bad := range []string{"", "host", "host:", ":80", "host:0", "host:70000", "a b:80", strings.Repeat("a", 300) + ":80"} {
		if _, err := OpenDirectory(dir, []string{bad}); err == nil {
			t.Errorf("%q was taken for an address", bad)
		}
	}
	d, err := OpenDirectory(dir, []string{"named:1", "both:1"})
	if err != nil {
		t.Fatal(err)
	}
	round := func(d *Directory, n int) []string {
		var out []string
		for range n {
			out = append(out, d.next())
		}
		slices.Sort(out)
		return out
	}
	if err := d.learn([]string{"both:1", "bad", "member:1", "both:1"}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"both:1", "member:1", "named:1"}, round(d, 3)); diff != "" {
		t.Error(diff)
	}
	d.try("elsewhere:1")
	if got := d.next(); got != "elsewhere:1" {
		t.Errorf("next is %s", got)
	}
	if err := d.learn(nil); err != nil { // nobody told
		t.Fatal(err)
	}
	again, err := OpenDirectory(dir, []string{"new:1"})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"both:1", "member:1", "new:1"}, round(again, 3)); diff != "" {
		t.Error(diff)
	}
}

// TestALeaderIsFoundInTimeThoughOthersAreDead: a host is back within 10 s of the return of the schedulers, of which some
// stay dead, however long they were away.
func TestALeaderIsFoundInTimeThoughOthersAreDead(t *testing.T) {
	named := []string{"a:1", "b:1", "c:1"}
	d, err := OpenDirectory(t.TempDir(), named)
	if err != nil {
		t.Fatal(err)
	}
	var p pacing
	if first := p.next(d.count()); first > reconnectLeast {
		t.Errorf("the first pause is %v", first)
	}
	for range 50 {
		p.next(d.count())
	}
	for range 1000 {
		var round time.Duration
		for range named {
			round += p.next(d.count())
		}
		if round > reconnectMost || round < reconnectMost/2-time.Millisecond {
			t.Fatalf("all three are asked once in %v", round)
		}
	}
	// One that ends every session at once is not asked without pauses; a session that stood begins them anew.
	p.stood(time.Second, d.count())
	if wait := p.next(d.count()); wait < time.Second/2 {
		t.Errorf("after a short session the pause is %v", wait)
	}
	p.stood(2*time.Second, d.count())
	if wait := p.next(d.count()); wait > reconnectLeast {
		t.Errorf("after a session of 2 s the pause is %v", wait)
	}
}
