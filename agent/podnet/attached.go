package podnet

import (
	"cmp"
	"errors"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"gantry/agent/pod"
	"gantry/fleet"
)

// Attachment is how a pod of the ledger is connected.
type Attachment struct {
	Pod  fleet.PodID
	Link pod.Link
	runs bool
}

// Attached are the pods of the ledger that have a network: what may run keeps its own, also while it is being stopped. Of two
// pods with one public port, the later order has it.
func Attached(records []pod.Record, idBase func(netip.Addr) uint32) (out []Attachment) {
	slices.SortFunc(records, func(a, b pod.Record) int { return cmp.Compare(a.Assignment.Generation, b.Assignment.Generation) })
	for _, rec := range records {
		a := rec.Assignment
		ended := rec.Ended != nil && rec.Ended.Incarnation >= a.Incarnation
		if rec.Addr.IsValid() && !ended && (a.Goal == fleet.GoalRun || rec.Begun == a.Incarnation) {
			link := a.LinkAt(rec.Addr, idBase)
			held, runs := rec.Holds()
			if runs {
				link.Overlays = held.Overlays
			}
			if runs && a.Goal != fleet.GoalRun {
				link.Ports = held.Mappings // an order to stop names none
			}
			out = append(out, Attachment{a.Pod, link, runs})
		}
	}
	sharePlaces(out)
	return out
}

// sharePlaces takes places from pods that others have already: first have those that run, then later orders. Such as after the control
// plane was restored from a copy, a ledger may hold two; both at once are no network, and the agent would not start.
func sharePlaces(pods []Attachment) {
	type at struct {
		vni  uint32
		addr netip.Addr
	}
	taken, ranges := map[at]bool{}, map[uint32]netip.Prefix{}
	for _, runs := range []bool{true, false} {
		for i := range slices.Backward(pods) {
			if pods[i].runs != runs {
				continue
			}
			link := &pods[i].Link
			link.Overlays = slices.DeleteFunc(slices.Clone(link.Overlays), func(p pod.Place) bool {
				cidr, known := ranges[p.VNI]
				return known && cidr != p.CIDR || taken[at{p.VNI, p.Addr}]
			})
			for _, p := range link.Overlays {
				taken[at{p.VNI, p.Addr}], ranges[p.VNI] = true, p.CIDR
			}
		}
	}
}

// Resolve writes the resolv.conf of pods that run, whose folders are in dir.
func Resolve(dir string, records []pod.Record, text string, log *slog.Logger) {
	for _, rec := range records {
		if _, runs := rec.Holds(); !runs {
			continue
		}
		if err := rewrite(filepath.Join(dir, string(rec.Assignment.Pod), "resolv.conf"), text); err != nil {
			log.Warn("write a pod's resolv.conf", "pod", rec.Assignment.Pod, "err", err)
		}
	}
}

// rewrite gives a file another text, where it is: it is mounted in a container. One that is not there is not made.
func rewrite(path, text string) error {
	if old, err := os.ReadFile(path); err != nil || string(old) == text {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text) // without a moment in which it is empty
	return errors.Join(err, f.Truncate(int64(len(text))), f.Close())
}
