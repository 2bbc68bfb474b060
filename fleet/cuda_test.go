package fleet

import (
	"fmt"
	"testing"
)

func TestParseCUDA(t *testing.T) {
	for _, c := range []struct {
		text         string
		major, minor int
		ok           bool
	}{
		{"12.8", 12, 8, true},
		{"12.10", 12, 10, true},
		{"9.0", 9, 0, true},
		{text: ""},
		{text: "12"},
		{text: "12."},
		{text: ".8"},
		{text: "12.8.1"},
		{text: "12.08"},
		{text: "+12.8"},
		{text: "-1.8"},
		{text: "12.-8"},
		{text: " 12.8"},
		{text: "12,8"},
		{text: "12.x"},
		{text: "99999.1"},
	} {
		major, minor, ok := ParseCUDA(c.text)
		if major != c.major || minor != c.minor || ok != c.ok {
			t.Errorf("%q is %d, %d, %t", c.text, major, minor, ok)
		}
	}
}

func FuzzParseCUDA(f *testing.F) {
	for _, s := range []string{"12.8", "9.0", "12.08", "."} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if major, minor, ok := ParseCUDA(s); ok && fmt.Sprintf("%d.%d", major, minor) != s {
			t.Errorf("%q is read as %d.%d", s, major, minor)
		}
	})
}
