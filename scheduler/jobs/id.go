package jobs

import (
	"encoding/hex"
	"regexp"
	"strings"

	"gantry/serverless/queue"
)

// region ends the text of an id: clients look for the form alone.
const region = "u1"

// IDText writes the id of a job (wire-facts.md, §2.1); sync: of one that was submitted by /runsync.
func IDText(id queue.ID, sync bool) string {
	t := hex.EncodeToString(id[:])
	text := t[:8] + "-" + t[8:12] + "-" + t[12:16] + "-" + t[16:20] + "-" + t[20:] + "-" + region
	if sync {
		return "sync-" + text
	}
	return text
}

var textOfID = regexp.MustCompile(`^(sync-)?([0-9a-f]{8})-([0-9a-f]{4})-([0-9a-f]{4})-([0-9a-f]{4})-([0-9a-f]{12})-` + region + `$`)

// ParseID reads what IDText wrote.
func ParseID(text string) (id queue.ID, ok bool) {
	m := textOfID.FindStringSubmatch(text)
	if m == nil {
		return id, false
	}
	_, err := hex.Decode(id[:], []byte(strings.Join(m[2:], "")))
	return id, err == nil
}
