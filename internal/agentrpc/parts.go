package agentrpc

import (
	"fmt"
	"reflect"

	"google.golang.org/protobuf/proto"
)

// The bounds of a message that comes in parts.
const (
	maxParts      = 1 << 16
	maxPartsBytes = 1 << 30
)

// Parts joins messages that come in parts (see Down). It is of the one goroutine that receives.
type Parts struct {
	have *Down // nil: nothing
	next uint32
	size int
}

// Add takes what came, and returns the whole message once its last part has come: until then a message that says nothing.
func (p *Parts) Add(msg *Down) (*Down, error) {
	same := p.have != nil && reflect.TypeOf(p.have.GetKind()) == reflect.TypeOf(msg.GetKind())
	switch {
	case msg.GetPart() == 0 && !msg.GetMore():
		if same {
			*p = Parts{}
		}
		return msg, nil
	case msg.GetPart() == 0:
		*p = Parts{have: msg, next: 1, size: proto.Size(msg)}
		return &Down{}, nil
	case !same || msg.GetPart() != p.next:
		return nil, fmt.Errorf("part %d of a message came, of which the scheduler had sent %d", msg.GetPart(), p.next)
	}
	p.next++
	if p.size += proto.Size(msg); p.next > maxParts || p.size > maxPartsBytes {
		return nil, fmt.Errorf("a message has more than %d parts or %d bytes", maxParts, maxPartsBytes)
	}
	proto.Merge(p.have, msg)
	if msg.GetMore() {
		return &Down{}, nil
	}
	whole := p.have
	*p = Parts{}
	return whole, nil
}
