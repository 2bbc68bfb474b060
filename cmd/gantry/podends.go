package main

import (
	"fmt"
	"time"

	"gantry/api/v2"
)

// endFlags say when a pod ends by itself, and whether it returns.
type endFlags struct {
	Return         *bool  `negatable:"" help:"Start an interruptible pod again by itself, at its bid, once there is room after an interruption."`
	StopAfter      string `placeholder:"WHEN" help:"When to stop the pod: a time such as 2030-01-31T18:00:00Z, or how long from now, such as 90m; never: not."`
	TerminateAfter string `placeholder:"WHEN" help:"When to terminate the pod, in the same form."`
}

// into puts what is given into a request.
func (f endFlags) into(body *v2.PodSettings, now time.Time) error {
	body.Return = f.Return
	for _, e := range []struct {
		flag, text string
		to         *v2.Maybe[v2.Time]
	}{{"--stop-after", f.StopAfter, &body.StopAfter}, {"--terminate-after", f.TerminateAfter, &body.TerminateAfter}} {
		if e.text == "" {
			continue
		}
		if e.text == "never" {
			*e.to = v2.Null[v2.Time]()
			continue
		}
		at, err := time.Parse(time.RFC3339, e.text)
		if in, bad := time.ParseDuration(e.text); err != nil && bad == nil && in > 0 {
			at, err = now.Add(in), nil
		}
		if err != nil {
			return usage("%s must be a time such as 2030-01-31T18:00:00Z, a duration such as 90m, or never", e.flag)
		}
		*e.to = v2.Value(v2.At(at))
	}
	return nil
}

// spotText says on what terms a pod has its place.
func spotText(p v2.Pod) string {
	if !p.Interruptible || p.BidPerGPU == nil {
		return ""
	}
	out := fmt.Sprintf("yes, bids %s per GPU and hour", dollars(*p.BidPerGPU))
	if p.Return {
		out += ", returns by itself"
	}
	if p.InterruptedAt != nil {
		out += ", interrupted at " + when(p.InterruptedAt)
	}
	return out
}
