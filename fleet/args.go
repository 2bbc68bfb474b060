package fleet

import (
	"encoding/json"
	"errors"
	"strings"
)

// Command is how a pod's args change what its image starts. A nil slice leaves the image's own.
type Command struct {
	Entrypoint []string
	Cmd        []string
}

// ParseArgs reads a pod's args (wire-facts 6.5): one string, either words as a POSIX shell splits
// them, which replace the image's command and keep its entrypoint, or the JSON object
// {"entrypoint": […], "cmd": […]}, which sets both. Empty args keep the image's own.
func ParseArgs(args string) (Command, error) {
	trimmed := strings.TrimSpace(args)
	if trimmed == "" {
		return Command{}, nil
	}
	if strings.HasPrefix(trimmed, "{") {
		var v struct {
			Entrypoint []string `json:"entrypoint"`
			Cmd        []string `json:"cmd"`
		}
		dec := json.NewDecoder(strings.NewReader(trimmed))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&v); err != nil || dec.More() {
			return Command{}, errors.New(`a JSON value must be an object with "entrypoint" and "cmd", lists of strings`)
		}
		return Command{Entrypoint: v.Entrypoint, Cmd: v.Cmd}, nil
	}
	words, err := splitWords(trimmed)
	if err != nil {
		return Command{}, err
	}
	return Command{Cmd: words}, nil
}

// splitWords splits as POSIX sh does for quoting (XCU 2.2): single quotes, double quotes, backslash.
// Nothing is expanded.
func splitWords(s string) ([]string, error) {
	var words []string
	var word strings.Builder
	inWord, quote := false, byte(0)
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case quote == 0 && strings.IndexByte(" \t\n\r", c) >= 0:
			if inWord {
				words, inWord = append(words, word.String()), false
				word.Reset()
			}
		case quote == 0 && (c == '\'' || c == '"'):
			quote, inWord = c, true
		case quote != 0 && c == quote:
			quote = 0
		case c == '\\' && quote != '\'':
			if i+1 == len(s) {
				return nil, errors.New("ends with a lone backslash")
			}
			i++
			inWord = true
			if quote == '"' && strings.IndexByte("$`\"\\\n", s[i]) < 0 {
				word.WriteByte('\\')
			}
			if s[i] != '\n' {
				word.WriteByte(s[i])
			}
		default:
			inWord = true
			word.WriteByte(c)
		}
	}
	if quote != 0 {
		return nil, errors.New("has a quote that is not closed")
	}
	if inWord {
		words = append(words, word.String())
	}
	return words, nil
}
