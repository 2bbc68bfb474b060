package schema

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

const draw = `{"type":"object","properties":{"prompt":{"type":"string","minLength":1,"maxLength":20},"width":{"type":"integer","minimum":64,"maximum":1024,"multipleOf":8},
	"style":{"enum":["oil","ink"]},"tags":{"type":"array","maxItems":2,"items":{"type":"string","pattern":"^[a-z]+$"}}},"required":["prompt"],"additionalProperties":false}`

func compiled(t testing.TB, text string) *Schema {
	t.Helper()
	s, err := Compile([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestCheck(t *testing.T) {
	s := compiled(t, draw)
	for _, tt := range []struct {
		input string
		want  []string
	}{
		{`{"prompt":"a cat","width":512,"style":"oil","tags":["a","b"]}`, nil},
		{`{}`, []string{"$.input: lacks prompt"}},
		{`{"prompt":7}`, []string{"$.input.prompt: must be of the type string"}},
		{`{"prompt":""}`, []string{"$.input.prompt: must have at least 1 characters"}},
		{`{"prompt":"secretsecretsecretsecret"}`, []string{"$.input.prompt: must have at most 20 characters"}},
		{`{"prompt":"a","width":7}`, []string{"$.input.width: must be a multiple of 8", "$.input.width: must be at least 64"}},
		{`{"prompt":"a","width":2048}`, []string{"$.input.width: must be at most 1024"}},
		{`{"prompt":"a","width":64.5}`, []string{"$.input.width: must be of the type integer"}},
		{`{"prompt":"a","style":"secret"}`, []string{"$.input.style: must be one of the values that the schema names"}},
		{`{"prompt":"a","secret":1}`, []string{"$.input: has a property that is not known"}},
		{`{"prompt":"a","tags":["a","SECRET","b"]}`, []string{"$.input.tags: must have at most 2 items", "$.input.tags[1]: must match the pattern that the schema names"}},
		{`{"prompt":`, []string{"$.input: must be JSON"}},
		{`[]`, []string{"$.input: must be of the type object"}},
	} {
		got := s.Check([]byte(tt.input))
		if slices.Sort(tt.want); !slices.Equal(got, tt.want) {
			t.Errorf("%s:\n got %q\nwant %q", tt.input, got, tt.want)
		}
	}
}

func TestASchemaThatIsNone(t *testing.T) {
	for text, want := range map[string]string{
		`{"type":`: "must be JSON", `[]`: "must be an object", `{"type":"secret"}`: "must be a JSON Schema: ",
		`{"$ref":"http://127.0.0.1:1/secret"}`: "refers to its own parts only", `{"$ref":"file:///etc/passwd"}`: "refers to its own parts only",
		`{"$ref":"#/nothing"}`: "can be compiled", `{"pattern":"("}`: "must be a JSON Schema",
	} {
		_, err := Compile([]byte(text))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "passwd") {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
	own := compiled(t, `{"$defs":{"n":{"type":"integer"}},"properties":{"a":{"$ref":"#/$defs/n"}}}`)
	if got := own.Check([]byte(`{"a":"x"}`)); len(got) != 1 {
		t.Errorf("own parts: %q", got)
	}
}

// An input of many values is refused before it is checked, and few failures are named.
func TestAnInputWithManyWrongValues(t *testing.T) {
	s := compiled(t, `{"properties":{"l":{"items":{"type":"string"}}}}`)
	list := func(n int) []byte { return fmt.Appendf(nil, `{"l":[1%s]}`, strings.Repeat(",1", n-1)) }
	begun := time.Now()
	if got := s.Check(list(1_000_000)); len(got) != 1 || !strings.Contains(got[0], "at most 4096 values") {
		t.Errorf("got %q", got)
	}
	if took := time.Since(begun); took > 2*time.Second {
		t.Errorf("it took %v", took)
	}
	if got := s.Check(list(1000)); len(got) != MaxFailures {
		t.Errorf("%d failures", len(got))
	}
}

func FuzzCheck(f *testing.F) {
	f.Add(draw, `{"prompt":"a"}`)
	f.Add(`{"items":{"$ref":"#"}}`, `[[[]]]`)
	f.Fuzz(func(_ *testing.T, text, input string) {
		if s, err := Compile([]byte(text)); err == nil {
			s.Check([]byte(input))
		}
	})
}
