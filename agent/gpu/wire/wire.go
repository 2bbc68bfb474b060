// Package wire is what the agent and its GPU helper say to each other: one JSON object a line, questions on the
// helper's standard input, answers and events on its standard output.
package wire

import "encoding/json"

// Limits of lines in bytes. Longer ones end the conversation.
const (
	MaxRequest = 64 << 10
	MaxReply   = 8 << 20
)

// Ask names a question.
type Ask string

// The questions.
const (
	AskInventory Ask = "inventory" // Reply.Inventory
	AskUse       Ask = "use"       // Reply.Use
	AskHolders   Ask = "holders"   // Reply.Holders, of the UUIDs asked for
	AskSpec      Ask = "spec"      // Reply.Spec, of the UUIDs asked for
)

// Request is a question. IDs begin with 1 and grow.
type Request struct {
	ID    uint64   `json:"id"`
	Ask   Ask      `json:"ask"`
	UUIDs []string `json:"uuids,omitempty"`
}

// Reply answers the request with its ID. One with ID 0 answers nothing: it is an event.
type Reply struct {
	ID        uint64          `json:"id"`
	Error     string          `json:"error,omitempty"`
	Inventory *Inventory      `json:"inventory,omitempty"`
	Use       []Use           `json:"use,omitempty"`
	Holders   []Holder        `json:"holders,omitempty"`
	Spec      json.RawMessage `json:"spec,omitempty"` // a CDI specification
	Event     *Event          `json:"event,omitempty"`
}

// Inventory is what the driver says of a machine.
type Inventory struct {
	Driver string `json:"driver"`
	CUDA   string `json:"cuda"` // "12.8"
	GPUs   []GPU  `json:"gpus"`
}

// GPU is a GPU, or a MIG instance when Parent is set.
type GPU struct {
	UUID     string `json:"uuid"`
	Name     string `json:"name"`
	MemoryMB int64  `json:"memoryMb"` // 10^6 bytes
	PCI      string `json:"pci"`      // "0000:3b:00.0"
	Island   int    `json:"island"`   // GPUs of one number are joined by NVLink
	Parent   string `json:"parent,omitempty"`
	MIG      bool   `json:"mig,omitempty"` // it is cut into instances and not to be used as a whole
	Sick     string `json:"sick,omitempty"`
	Reset    string `json:"reset,omitempty"` // why a reset is wanted while it may still be used
}

// Use is how busy a GPU is, in percent. Of a MIG instance only the memory is known.
type Use struct {
	UUID   string `json:"uuid"`
	Util   int    `json:"util"`
	Memory int    `json:"memory"`
}

// Holder is a process that works on a GPU.
type Holder struct {
	UUID string `json:"uuid"`
	PID  int    `json:"pid"`
}

// Event is an XID error that the driver reported. The UUID is empty when it named no GPU, and that of
// the whole GPU where it has instances.
type Event struct {
	UUID string `json:"uuid"`
	XID  uint64 `json:"xid"`
}
