// Package broker is how gantry-s3, which has no identity of its own, asks the agent of its host what an S3 key may do, and for
// the folders of volumes.
//
// It goes over a unix stream, as internal/ipc has it; the folder of a volume comes beside its answer as a descriptor. Neither side
// trusts what it reads.
package broker

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

// ErrNoKey says that there is no such access key.
var ErrNoKey = errors.New("no such access key")

// Refused is what the agent could not do, in a sentence without secrets.
type Refused struct{ Sentence string }

// Error returns the sentence.
func (r *Refused) Error() string { return r.Sentence }

// Asked names an access key, and what its signing key is for.
type Asked struct {
	Key    string `json:"key"`
	Date   string `json:"date"` // yyyymmdd, UTC
	Region string `json:"region"`
}

// Access is what an access key may do.
type Access struct {
	Account    string   `json:"account"`
	ReadOnly   bool     `json:"read_only,omitempty"`
	SigningKey []byte   `json:"signing_key"` // of SigV4, for the asked date and region and the service s3
	Volumes    []Volume `json:"volumes,omitempty"`
}

// Volume is a network volume that an access key reaches.
type Volume struct {
	ID        string    `json:"id"`
	Name      string    `json:"name"`
	CreatedAt time.Time `json:"created_at"`
	SizeGB    int64     `json:"size_gb"`
	ReadOnly  bool      `json:"read_only,omitempty"` // it holds more than its size
}

// Opened is what is to be known of a volume's folder.
type Opened struct {
	Owner uint32 `json:"owner"` // user and group of its files
}

// Operations of requests.
const (
	opAccess = "access"
	opOpen   = "open"
)

// kindNoKey is the kind of an error that crosses as ErrNoKey. All others are Refused.
const kindNoKey = "no key"

type request struct {
	op string
	Asked
	Volume string `json:"volume,omitempty"`
}

// answer holds what was asked for.
type answer struct {
	Access *Access `json:"access,omitempty"`
	Opened *Opened `json:"opened,omitempty"`
}

// Bounds of messages and of what stands in them, in bytes.
const (
	maxRequest = 4 << 10
	maxAnswer  = 8 << 20
	maxWord    = 256
)

func decodeRequest(op string, body []byte) (request, error) {
	r := request{op: op}
	if err := json.Unmarshal(body, &r); err != nil {
		return request{}, fmt.Errorf("read a request: %w", err)
	}
	for _, w := range []string{r.Key, r.Date, r.Region, r.Volume} {
		if len(w) > maxWord || strings.ContainsFunc(w, func(c rune) bool { return c <= ' ' || c == 0x7f }) {
			return request{}, errors.New("read a request: a word that is none")
		}
	}
	switch {
	case op != opAccess && op != opOpen:
		return request{}, errors.New("read a request: an unknown one")
	case r.Key == "" || r.Date == "" || r.Region == "" || (op == opOpen) != (r.Volume != ""):
		return request{}, errors.New("read a request: it says too little or too much")
	}
	return r, nil
}

// decodeAnswer reads the answer to a request. What it refuses is no answer at all.
func decodeAnswer(op string, body []byte) (answer, error) {
	var a answer
	if err := json.Unmarshal(body, &a); err != nil {
		return answer{}, fmt.Errorf("read an answer: %w", err)
	}
	switch {
	case (op == opAccess) != (a.Access != nil), (op == opOpen) != (a.Opened != nil):
		return answer{}, errors.New("read an answer: it is to something else")
	case a.Access != nil && len(a.Access.SigningKey) != 32:
		return answer{}, errors.New("read an answer: no signing key")
	}
	return a, nil
}
