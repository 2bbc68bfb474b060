package pod

import "gantry/fleet"

// WantedImages are the images that orders of the host need, by reference and by digest.
type WantedImages struct {
	Ordered []string // of pods that are to run
	Known   []string // of all pods that the scheduler lists here
}

// ImagesWanted tells which images the ledger's orders need.
func ImagesWanted(records []Record) WantedImages {
	var out WantedImages
	for _, rec := range records {
		a := rec.Assignment
		if rec.Orphan || a.Goal == fleet.GoalGone {
			continue
		}
		these := []string{a.Image}
		if a.Digest != "" {
			these = append(these, a.Digest)
		}
		out.Known = append(out.Known, these...)
		if a.Goal == fleet.GoalRun && !rec.HasEnded() {
			out.Ordered = append(out.Ordered, these...)
		}
	}
	return out
}
