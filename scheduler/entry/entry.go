// Package entry is what replicated logs hold: entries with commands in them, written as CBOR.
package entry

import (
	"fmt"
	"reflect"

	"github.com/fxamacker/cbor/v2"

	"gantry/fleet"
)

// Entry is one entry of the log. Data is what Encode returned, or several of those joined.
type Entry struct {
	Index uint64
	Term  uint64
	Data  []byte
}

// Result is what became of one command. Value is the proposer's to keep.
type Result struct {
	Value any
	Err   error // a *fleet.Error
}

// Encoding is how commands and records become bytes.
type Encoding struct {
	Enc cbor.EncMode
	Dec cbor.DecMode
}

// Codec writes and reads the commands of one log, of the Go type C. It holds nothing that changes.
type Codec[C any] struct {
	Encoding
	most   int // bytes of one command
	number func(C) uint64
	types  map[uint64]reflect.Type
}

// NewCodec makes the codec of commands, of which each type is given once, with its number on the log and the most bytes
// of one. It is deterministic, with exact times in UTC, and on reading takes no unknown field and no duplicate key,
// since a replica that does not understand all of a record must not go on. Strings that are not UTF-8 are kept
// as they are: refusing them here would stop every replica.
func NewCodec[C any](most int, number func(C) uint64, commands []C) (*Codec[C], error) {
	opts := cbor.CoreDetEncOptions()
	opts.Time = cbor.TimeRFC3339NanoUTC
	enc, err := opts.EncMode()
	if err != nil {
		return nil, fmt.Errorf("encoding options: %w", err)
	}
	dec, err := cbor.DecOptions{
		DupMapKey:         cbor.DupMapKeyEnforcedAPF,
		ExtraReturnErrors: cbor.ExtraDecErrorUnknownField,
		IndefLength:       cbor.IndefLengthForbidden,
		TagsMd:            cbor.TagsForbidden,
		UTF8:              cbor.UTF8DecodeInvalid,
		MaxArrayElements:  4 << 20,
		MaxMapPairs:       4 << 20,
	}.DecMode()
	if err != nil {
		return nil, fmt.Errorf("decoding options: %w", err)
	}
	c := &Codec[C]{Encoding: Encoding{enc, dec}, most: most, number: number, types: map[uint64]reflect.Type{}}
	for _, cmd := range commands {
		if has := c.types[number(cmd)]; has != nil {
			return nil, fmt.Errorf("%T and %s have the same number", cmd, has)
		}
		c.types[number(cmd)] = reflect.TypeOf(cmd)
	}
	return c, nil
}

// envelope is one command on the log.
type envelope struct {
	_      struct{} `cbor:",toarray"`
	Number uint64
	Body   cbor.RawMessage
}

// Encode returns the data of an entry that holds the commands, which are decided one by one in this order. Entries may be
// joined: the data of two, one after the other, is an entry with the commands of both. What Encode returns, Decode
// reads. Errors: too_large; invalid when a command cannot be written, for example a time after the year 9999.
func (c *Codec[C]) Encode(cmds ...C) (out []byte, err error) {
	for _, cmd := range cmds {
		if out, err = c.add(out, cmd); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// add writes one command. It reads it again, because an entry that cannot be read stops every replica for ever.
func (c *Codec[C]) add(out []byte, cmd C) ([]byte, error) {
	body, err := c.Enc.Marshal(cmd)
	if err != nil {
		return nil, unwritable(cmd, err)
	}
	data, err := c.Enc.Marshal(envelope{Number: c.number(cmd), Body: body})
	if err != nil {
		return nil, unwritable(cmd, err)
	}
	if len(data) > c.most {
		return nil, &fleet.Error{Code: fleet.CodeTooLarge, Msg: "the request is too large"}
	}
	kind, ok := c.types[c.number(cmd)]
	if !ok {
		return nil, unwritable(cmd, fmt.Errorf("nothing has the number %d", c.number(cmd)))
	}
	if err := c.Dec.Unmarshal(body, reflect.New(kind).Interface()); err != nil {
		return nil, unwritable(cmd, err)
	}
	if out == nil {
		return data, nil
	}
	return append(out, data...), nil
}

// unwritable says that a command holds a value that the log cannot hold.
func unwritable(cmd any, err error) error {
	return &fleet.Error{Code: fleet.CodeInvalid, Msg: "a value cannot be recorded", Err: fmt.Errorf("encode %T: %w", cmd, err)}
}

// Decode returns the commands of an entry. It fails on a command type that it does not know and on any byte that it
// does not understand.
func (c *Codec[C]) Decode(data []byte) ([]C, error) {
	var out []C
	for len(data) > 0 {
		var env envelope
		rest, err := c.Dec.UnmarshalFirst(data, &env)
		if err != nil {
			return nil, fmt.Errorf("command %d of an entry: %w", len(out), err)
		}
		kind, ok := c.types[env.Number]
		if !ok {
			return nil, fmt.Errorf("command %d of an entry has the unknown type %d: a newer version wrote it", len(out), env.Number)
		}
		cmd := reflect.New(kind)
		if err := c.Dec.Unmarshal(env.Body, cmd.Interface()); err != nil {
			return nil, fmt.Errorf("command %d of an entry, type %d: %w", len(out), env.Number, err)
		}
		out = append(out, cmd.Elem().Interface().(C))
		data = rest
	}
	return out, nil
}
