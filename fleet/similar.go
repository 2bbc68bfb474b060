package fleet

import (
	"slices"
	"strings"
)

// mostSimilar is how many names Similar returns at most.
const mostSimilar = 5

// Similar returns, in their order, those of names that a person may have meant by text: those that have each word of it,
// in any case; where there are none, those that differ from it the least, as a whole or in one word, by two characters
// at most. It returns at most five.
func Similar(text string, names []string) []string {
	words := strings.Fields(strings.ToLower(text))
	if len(words) == 0 {
		return nil
	}
	var all, near []string
	nearest := 2
	for _, name := range names {
		low := strings.ToLower(name)
		switch {
		case !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(low, w) }):
			all = append(all, name)
		case len(text) <= len(name)+2 && len(name) <= 100:
			least := nearest + 1
			for _, part := range append(strings.Fields(low), low) {
				least = min(least, distance(strings.ToLower(text), part))
			}
			if least < nearest {
				near, nearest = nil, least
			}
			if least == nearest {
				near = append(near, name)
			}
		}
	}
	if len(all) == 0 {
		all = near
	}
	return all[:min(len(all), mostSimilar)]
}

// distance is how many bytes are to be inserted, deleted or replaced to make b of a.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		left := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := left
			if a[i] != b[j] {
				cost = 1 + min(left, row[j], row[j+1])
			}
			left, row[j+1] = row[j+1], cost
		}
	}
	return row[len(b)]
}
