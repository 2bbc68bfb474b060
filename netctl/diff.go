package netctl

import (
	"fmt"
	"strings"
)

// Verb is what an Op does.
type Verb int

// The verbs, in the order in which Diff lists them.
const (
	RemovePod     Verb = iota + 1 // remove Pod
	RemoveOverlay                 // remove the overlay VNI
	SetHost                       // make bridge, forwarding and rules those of the wanted value
	SetOverlay                    // make or change the overlay VNI
	ReplacePod                    // give Pod its new address, ports, places, limits or ids
	AddPod                        // add Pod
)

// Op is one step from what is to what should be.
type Op struct {
	Verb Verb
	Pod  Pod    // of the pod verbs
	VNI  uint32 // of the overlay verbs
	Text string // how a reviewer reads it
}

// Diff returns the steps that lead from have to want: removals, the host, its overlays, then
// replacements and additions of pods by id. It is empty when both are equal.
func Diff(have, want Config) []Op {
	var gone, come []Op
	for _, p := range have.Pods {
		if _, ok := want.Pod(p.ID); !ok || have.Instance != want.Instance {
			gone = append(gone, Op{Verb: RemovePod, Pod: p, Text: "- " + podLine(have.Instance, p)})
		}
	}
	goneOverlays, comeOverlays := diffOverlays(have, want)
	gone = append(gone, goneOverlays...)
	if !have.sameHost(want) {
		gone = append(gone, Op{Verb: SetHost, Text: "~ " + want.hostLine()})
	}
	gone = append(gone, comeOverlays...)
	for _, p := range want.Pods {
		old, ok := have.Pod(p.ID)
		switch {
		case !ok || have.Instance != want.Instance:
			come = append(come, Op{Verb: AddPod, Pod: p, Text: "+ " + podLine(want.Instance, p)})
		case !old.Equal(p):
			come = append(come, Op{Verb: ReplacePod, Pod: p, Text: "~ " + podLine(want.Instance, p)})
		}
	}
	return append(gone, come...)
}

// Text joins the steps, one a line.
func Text(ops []Op) string {
	var b strings.Builder
	for _, op := range ops {
		fmt.Fprintln(&b, op.Text)
	}
	return b.String()
}
