package state

import (
	"fmt"
	"reflect"
	"sync"

	"github.com/fxamacker/cbor/v2"

	"gantry/fleet"
)

// MaxCommand is the most bytes of one encoded command; Encode refuses more.
const MaxCommand = 4 << 20

// codec is one way to write bytes and one way to read them. It holds nothing that changes.
type codec struct {
	enc   cbor.EncMode
	dec   cbor.DecMode
	types map[uint64]reflect.Type // of commands, by number
}

// wire returns the codec of entries and records.
var wire = sync.OnceValues(newCodec)

// newCodec makes the codec: deterministic, exact times in UTC, and on reading no unknown field and no
// duplicate key, since a replica that does not understand all of a record must not go on. Strings
// that are not UTF-8 are kept as they are: refusing them here would stop every replica.
func newCodec() (*codec, error) {
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
		MaxArrayElements:  MaxCommand,
		MaxMapPairs:       MaxCommand,
	}.DecMode()
	if err != nil {
		return nil, fmt.Errorf("decoding options: %w", err)
	}
	c := &codec{enc: enc, dec: dec, types: map[uint64]reflect.Type{}}
	for _, cmd := range commandTypes() {
		c.types[cmd.number()] = reflect.TypeOf(cmd)
	}
	return c, nil
}

// commandTypes lists an empty command of every type that the log may hold.
func commandTypes() []Command {
	return []Command{
		Bootstrap{},
		PutDataCenter{},
		PutCatalog{},
		PutAccount{},
		PutKey{},
		DeleteKey{},
		PutToken{},
		JoinHost{},
		ConnectHost{},
		SetHostState{},
		CreatePods{},
		ActPod{},
		ReportPods{},
		PurgePods{},
		UpdatePod{},
		Put[fleet.Template]{},
		Delete[fleet.Template]{},
		Put[fleet.Registry]{},
		Delete[fleet.Registry]{},
		SetSSHKeys{},
		UpdateKey{},
		TouchKeys{},
		UpdateAccount{},
		AddCredit{},
		PutGPUType{},
		DeleteGPUType{},
		PutCPUFlavor{},
		DeleteCPUFlavor{},
		PutStoragePrices{},
		DeleteDataCenter{},
		SetHostCloud{},
		CreateVolume{},
		UpdateVolume{},
		DeleteVolume{},
		SettleMeters{},
		ExhaustAccounts{},
		PurgeUsage{},
		PurgeOnce{},
		SetTemplateSource{},
		PutMember{},
		JoinMember{},
		RemoveMember{},
		RaiseLevel{},
		RestoreCluster{},
		SetHostEligibility{},
		SetHostLabels{},
		FenceHost{},
		RemoveHost{},
		PurgeHosts{},
		AlarmHost{},
		MovePod{},
		UpdateInventory{},
		Put[fleet.AccountSecret]{},
		Delete[fleet.AccountSecret]{},
		PutBackend{},
		DeleteBackend{},
		ReportVolumes{},
		SetHostRoles{},
		Put[fleet.S3Key]{},
		Delete[fleet.S3Key]{},
		PutNetworkSettings{},
		PutTLSFile{},
		BeginRotation{},
		AdvanceRotation{},
		SetLimits{},
		EvictPod{},
		TickClock{},
		CordonGPU{},
		OpenGPU{},
		SuspendAccount{},
		NoteBackup{},
		PutPlacement{},
	}
}

// envelope is one command on the log.
type envelope struct {
	_      struct{} `cbor:",toarray"`
	Number uint64
	Body   cbor.RawMessage
}

// Encode returns the data of a log entry that holds the commands, which are decided one by one in
// this order. Entries may be joined: the data of two, one after the other, is an entry with the
// commands of both. What Encode returns, Decode reads. Errors: too_large when a command is above
// MaxCommand, invalid when it cannot be written, for example a time after the year 9999.
func Encode(cmds ...Command) ([]byte, error) {
	c, err := wire()
	if err != nil {
		return nil, err
	}
	var out []byte
	for _, cmd := range cmds {
		data, err := c.encode(cmd)
		if err != nil {
			return nil, err
		}
		out = append(out, data...)
	}
	return out, nil
}

// encode writes one command. It reads it again, because an entry that cannot be read stops every
// replica for ever.
func (c *codec) encode(cmd Command) ([]byte, error) {
	body, err := c.enc.Marshal(cmd)
	if err != nil {
		return nil, unwritable(cmd, err)
	}
	data, err := c.enc.Marshal(envelope{Number: cmd.number(), Body: body})
	if err != nil {
		return nil, unwritable(cmd, err)
	}
	if len(data) > MaxCommand {
		return nil, &fleet.Error{Code: fleet.CodeTooLarge, Msg: "the request is too large"}
	}
	if err := c.dec.Unmarshal(body, reflect.New(c.types[cmd.number()]).Interface()); err != nil {
		return nil, unwritable(cmd, err)
	}
	return data, nil
}

// unwritable says that a command holds a value that the log cannot hold.
func unwritable(cmd Command, err error) error {
	return &fleet.Error{Code: fleet.CodeInvalid, Msg: "a value cannot be recorded", Err: fmt.Errorf("encode %T: %w", cmd, err)}
}

// Decode returns the commands of a log entry. It fails on a command type that it does not know and
// on any byte that it does not understand.
func Decode(data []byte) ([]Command, error) {
	c, err := wire()
	if err != nil {
		return nil, err
	}
	return c.decode(data)
}

// decode reads the commands of an entry.
func (c *codec) decode(data []byte) ([]Command, error) {
	var out []Command
	for len(data) > 0 {
		var env envelope
		rest, err := c.dec.UnmarshalFirst(data, &env)
		if err != nil {
			return nil, fmt.Errorf("command %d of an entry: %w", len(out), err)
		}
		kind, ok := c.types[env.Number]
		if !ok {
			return nil, fmt.Errorf("command %d of an entry has the unknown type %d: a newer version wrote it", len(out), env.Number)
		}
		cmd := reflect.New(kind)
		if err := c.dec.Unmarshal(env.Body, cmd.Interface()); err != nil {
			return nil, fmt.Errorf("command %d of an entry, type %d: %w", len(out), env.Number, err)
		}
		out = append(out, cmd.Elem().Interface().(Command))
		data = rest
	}
	return out, nil
}
