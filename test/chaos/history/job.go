package history

import "github.com/anishathalye/porcupine"

// Job is the model of a serverless job, as its users may see it: its end is decided once, by whoever it is, and is the same for all from
// then on. A cancel ends it, unless it has ended. A call's input is whether it cancels, its output is the status that it was told; empty:
// nobody knows whether the cancel was heard.
var Job = porcupine.Model{
	Init: func() any { return "" },
	Step: func(before, cancel, status any) (bool, any) {
		ends := status != "IN_QUEUE" && status != "IN_PROGRESS"
		switch {
		case status == "" && before == "":
			return true, "CANCELLED"
		case status == "":
			return true, before
		case before != "":
			return status == before, before
		case ends:
			return true, status
		}
		return cancel != true, before
	},
}
