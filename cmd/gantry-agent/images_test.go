package main

import (
	"strings"
	"testing"
)

func TestImageFlags(t *testing.T) {
	for _, tc := range []struct {
		flags imageFlags
		want  string // what the faults name, joined by blanks
	}{
		{imageFlags{85, 75, 200}, ""},
		{imageFlags{0, 75, 1}, ""},
		{imageFlags{99, 98, 10_000}, ""},
		{imageFlags{100, 75, 200}, "--image-gc-high"},
		{imageFlags{1, 0, 200}, "--image-gc-high --image-gc-low"},
		{imageFlags{75, 75, 200}, "--image-gc-low"},
		{imageFlags{85, 0, 200}, "--image-gc-low"},
		{imageFlags{85, 75, 0}, "--max-image-gb"},
		{imageFlags{85, 75, 10_001}, "--max-image-gb"},
	} {
		var named []string
		if err := tc.flags.validate(); err != nil {
			for line := range strings.Lines(err.Error()) {
				named = append(named, strings.Fields(line)[0])
			}
		}
		if got := strings.Join(named, " "); got != tc.want {
			t.Errorf("%+v: faults of %q, want %q", tc.flags, got, tc.want)
		}
	}
	if f := (imageFlags{85, 75, 200}); f.room().High != 85 || f.room().Low != 75 || f.maxBytes() != 200_000_000_000 {
		t.Errorf("%+v, %d", f.room(), f.maxBytes())
	}
}
