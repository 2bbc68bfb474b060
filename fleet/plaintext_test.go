package fleet_test

import (
	"testing"

	"gantry/fleet"
)

func TestPlainText(t *testing.T) {
	for _, good := range []string{"", "web", "Zürich 東京", "\u05e9\u05dc\u05d5\u05dd", "family \U0001f468\u200d\U0001f469", "a\u00a0b"} {
		if !fleet.PlainText(good) {
			t.Errorf("%q is refused", good)
		}
	}
	for _, bad := range []string{"a\x00", "a\n", "\x1b[31m", "\x7f", "\u009b31m", "\u0085", "\u202ea", "a\u2066", "\u200f", "\u061c", "\u2028", "\xff"} {
		if fleet.PlainText(bad) {
			t.Errorf("%q is taken", bad)
		}
	}
}
