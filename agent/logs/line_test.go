package logs

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

func TestRecordSurvivesTheRoundTrip(t *testing.T) {
	for name, r := range map[string]record{
		"plain":    {nano: 1767366245000000001, seq: 17, stream: Stdout, text: []byte("hello world")},
		"empty":    {nano: 1, seq: 1, stream: Stderr, text: []byte{}},
		"partial":  {nano: 1767366245999999999, seq: 1 << 63, stream: Stdout, partial: true, text: []byte("  x ")},
		"system":   {nano: 1767366245120000000, seq: 3, stream: System, text: []byte("create container a/b:c")},
		"no utf-8": {nano: 5, seq: 4, stream: Stdout, text: []byte{0xff, 0, '\r', 0x1b}},
		"longest":  {nano: 5, seq: 4, stream: Stdout, text: bytes.Repeat([]byte("a"), MaxText)},
	} {
		t.Run(name, func(t *testing.T) {
			b := appendRecord(nil, r)
			if len(b) > maxRecord {
				t.Fatalf("%d bytes, more than maxRecord", len(b))
			}
			got, err := parseRecord(b[:len(b)-1])
			if err != nil || got.nano != r.nano || got.seq != r.seq || got.stream != r.stream || got.partial != r.partial || !bytes.Equal(got.text, r.text) {
				t.Fatalf("got %+v, %v", got, err)
			}
		})
	}
}

func TestParseRefusesWhatIsNoRecord(t *testing.T) {
	const good = "2026-01-02T15:04:05.000000001Z 17 stdout F text"
	if _, err := parseRecord([]byte(good)); err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{
		"", "x", strings.Repeat("\x00", 100), good[:30], good[:31], good[:33], good[:40], good[:42],
		"2026-13-02T15:04:05.000000001Z 17 stdout F x",
		"2026-02-30T15:04:05.000000001Z 17 stdout F x",
		"2026-01-02T24:04:05.000000001Z 17 stdout F x",
		"2026-01-02T15:04:05.00000001ZZ 17 stdout F x",
		"9999-01-02T15:04:05.000000001Z 17 stdout F x",
		"2026-01-02T15:04:05.000000001Z 017 stdout F x",
		"2026-01-02T15:04:05.000000001Z -1 stdout F x",
		"2026-01-02T15:04:05.000000001Z 99999999999999999999 stdout F x",
		"2026-01-02T15:04:05.000000001Z 17 stdin F x",
		"2026-01-02T15:04:05.000000001Z 17 stdout X x",
		"2026-01-02T15:04:05.000000001Z 17 stdout F",
		good + strings.Repeat("x", MaxText),
	} {
		if r, err := parseRecord([]byte(s)); err == nil {
			t.Errorf("%.60q parsed as %+v", s, r)
		}
	}
}

func TestIDForms(t *testing.T) {
	at := time.Date(2026, 1, 2, 15, 4, 5, 120, time.UTC)
	for s, want := range map[string]ID{
		"2026-01-02T15:04:05.000000120Z/17":  {at, 17},
		"2026-01-02T15:04:05.00000012Z":      {at, 0},
		"2026-01-02T16:04:05.00000012+01:00": {at, 0},
	} {
		got, err := ParseID(s)
		if err != nil || !got.Time.Equal(want.Time) || got.Seq != want.Seq {
			t.Errorf("%s: %+v, %v", s, got, err)
		}
		if back, err := ParseID(got.String()); err != nil || back != got {
			t.Errorf("%s: back %+v, %v", s, back, err)
		}
	}
	for _, s := range []string{"", "/", "17", "x/1", "2026-01-02T15:04:05Z/", "2026-01-02T15:04:05Z/-1", "0001-01-01T00:00:00Z/1"} {
		if id, err := ParseID(s); err == nil {
			t.Errorf("%q gave %+v", s, id)
		}
	}
}

func TestRuneCutKeepsCharactersWhole(t *testing.T) {
	for s, want := range map[string]int{
		"": 0, "abc": 3, "ab\xc3": 2, "abé": 4, "a\xe2\x82": 1, "a\xf0\x9f\x98": 1, "a\xff": 2, "\x80\x80\x80\x80": 4, "\xe2": 1,
	} {
		if got := runeCut([]byte(s)); got != want {
			t.Errorf("%q: %d, want %d", s, got, want)
		}
	}
}

func FuzzParseRecord(f *testing.F) {
	f.Add([]byte("2026-01-02T15:04:05.000000001Z 17 stdout F the text"))
	f.Add([]byte("2026-01-02T15:04:05.999999999Z 18446744073709551615 system P "))
	f.Add([]byte{0, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := parseRecord(b)
		if err != nil || bytes.IndexByte(b, '\n') >= 0 {
			return
		}
		if back := appendRecord(nil, r); !bytes.Equal(back[:len(back)-1], b) {
			t.Fatalf("%q became %q", b, back)
		}
	})
}

func FuzzParseID(f *testing.F) {
	f.Add("2026-01-02T15:04:05.000000120Z/17")
	f.Fuzz(func(t *testing.T, s string) {
		id, err := ParseID(s)
		if err != nil {
			return
		}
		if back, err := ParseID(id.String()); err != nil || back != id {
			t.Fatalf("%q: %+v became %+v, %v", s, id, back, err)
		}
	})
}
