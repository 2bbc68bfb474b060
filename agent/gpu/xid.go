package gpu

import "fmt"

// harmless are the XID errors that say nothing against a GPU: those of a program that did wrong, and records of a
// repair. All others take it out of service.
var harmless = map[uint64]bool{
	8:   true, // the GPU stopped working on a program's commands
	13:  true, // graphics engine exception
	31:  true, // a program touched memory that is not mapped
	43:  true, // a program was stopped
	45:  true, // a program was ended early
	63:  true, // a row of memory is to be replaced: health tells whether that fails
	68:  true, // video processor exception
	109: true, // context switch timeout
	154: true, // the recovery that the GPU wants has changed: the error that led to it was told
}

// words for the errors that are met most; see docs/gpus.md.
var words = map[uint64]string{
	48: "uncorrectable memory error", 62: "its microcontroller has halted", 64: "a broken row of its memory could not be replaced",
	74: "NVLink error", 79: "it has fallen off the bus", 92: "many memory errors", 94: "contained uncorrectable memory error",
	95: "uncontained uncorrectable memory error", 110: "security fault", 119: "its system processor does not answer",
	120: "its system processor has failed", 140: "unrecovered memory error", 143: "it could not be initialised",
}

// verdict says why a GPU with this XID error is out of service; "" when it is not.
func verdict(xid uint64) string {
	if harmless[xid] {
		return ""
	}
	if text := words[xid]; text != "" {
		return fmt.Sprintf("the driver reported XID %d: %s", xid, text)
	}
	return fmt.Sprintf("the driver reported XID %d", xid)
}
