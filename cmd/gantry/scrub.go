package main

import (
	"bytes"
	"encoding/json"
	"regexp"
	"strings"
)

const leftOut = "(left out)"

var (
	secretName = regexp.MustCompile(`(?i)secret|password|passphrase|token|credential|authorization|^env$|key$`)
	secretForm = regexp.MustCompile(`(gk|rps|gj1)_[0-9A-Za-z_-]{6,}|AGE-SECRET-KEY-1[0-9A-Z]+`)
	secretSaid = regexp.MustCompile(`(?i)((?:[a-z_.-]*(?:secret|password|passphrase|token|credential|authorization)|[a-z]+[_-]key|\bkey)[a-z_.-]*\\?["']?\s*[:=]\s*)(?:bearer\s+|basic\s+)?(\\?"[^"\n]*"?|'[^'\n]*'?|[^\s,;}]+)`)
	secretUser = regexp.MustCompile(`(://[^/\s:@"]*:)[^/\s@"]+@`)
	secretAuth = regexp.MustCompile(`(?i)\b(bearer|basic)\s+[0-9A-Za-z._~+/=-]{6,}`)
	secretPEM  = regexp.MustCompile(`(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [A-Z ]*PRIVATE KEY-----`)
	endOfPEM   = regexp.MustCompile(`(?s)\A.*-----END [A-Z ]*PRIVATE KEY-----`)
	beginOfPEM = regexp.MustCompile(`(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*\z`)
)

// scrubber leaves secrets out: those that it was told of, and what has their form or their name.
type scrubber struct{ known *strings.Replacer }

func newScrubber(known ...string) scrubber {
	var pairs []string
	for _, k := range known {
		if k = strings.TrimSpace(k); k != "" {
			pairs = append(pairs, k, leftOut)
		}
	}
	return scrubber{strings.NewReplacer(pairs...)}
}

func (s scrubber) text(text string) string {
	text = s.known.Replace(text)
	for _, r := range []*regexp.Regexp{secretPEM, endOfPEM, beginOfPEM, secretForm} {
		text = r.ReplaceAllString(text, leftOut)
	}
	text = secretUser.ReplaceAllString(text, "${1}"+leftOut+"@")
	text = secretAuth.ReplaceAllString(text, "${1} "+leftOut)
	return secretSaid.ReplaceAllString(text, "${1}"+leftOut)
}

// json leaves out the values of members with a secret's name as well.
func (s scrubber) json(raw []byte) ([]byte, error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, err
	}
	out, err := json.MarshalIndent(s.value(v), "", "  ")
	return append(out, '\n'), err
}

func (s scrubber) value(v any) any {
	switch v := v.(type) {
	case string:
		return s.text(v)
	case []any:
		for i := range v {
			v[i] = s.value(v[i])
		}
	case map[string]any:
		out := make(map[string]any, len(v))
		for name, x := range v {
			_, isFlag := x.(bool)
			if secretName.MatchString(name) && x != nil && !isFlag {
				x = leftOut
			}
			out[s.text(name)] = s.value(x)
		}
		return out
	}
	return v
}
