package fleet

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// PlainText reports whether a name may be shown as it is: UTF-8 without control characters (C0, DEL and C1, which steer
// terminals), line separators, and marks that change the direction of the text around them.
func PlainText(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool {
		return unicode.IsControl(r) || r == '\u2028' || r == '\u2029' || unicode.Is(unicode.Bidi_Control, r)
	})
}
