package state

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"gantry/fleet"
)

// changesOf returns the events after a place, in words.
func changesOf(s *Store, after fleet.EventPlace) (out []string, upTo fleet.EventPlace, lost bool) {
	upTo, lost = s.Changes(after, math.MaxInt, func(at fleet.EventPlace, e *fleet.Event) bool {
		out = append(out, fmt.Sprint(at, " ", e.Kind, " ", e.Object, " ", e.Type, " ", e.Status, " ", e.Account, " ", e.At.Unix()))
		return true
	})
	return out, upTo, lost
}

// TestReplicasHaveTheSameEvents applies one log in batches of different sizes: events are the same, at the same places, so that a
// client goes on at another scheduler where it was.
func TestReplicasHaveTheSameEvents(t *testing.T) {
	w := newWorld(t).settle().furnish()
	w.must(UpdateAccount{Account: "acme", Prepaid: new(true)}, AddCredit{Account: "acme", Amount: 100 * fleet.Dollar, At: at(9)})
	w.create("pod-1", "host-a", 0)
	two := CreatePods{Pods: []NewPod{{Pod: podOn("pod-2", "host-a", 1)}, {Pod: podOn("pod-3", "host-b", 1)}}}
	two.Pods[0].HostEpoch = w.host("host-a").Epoch
	two.Pods[1].HostEpoch = w.host("host-b").Epoch + 1
	w.refused(fleet.CodeStale, two) // its first half is taken back, and no event tells of it
	w.must(w.report("pod-1", fleet.EventRunning), w.act("pod-1", fleet.ActionTerminate),
		Delete[fleet.S3Key]{Account: "acme", ID: sampleS3Key().ID}, DeleteVolume{Account: "acme", Volume: "vol-1", At: at(60)})
	want, upTo, lost := changesOf(w.s, fleet.EventPlace{Seq: math.MaxUint32})
	if lost || !upTo.Whole() {
		t.Fatal(want, upTo, lost)
	}
	all := strings.Join(want, "\n")
	for _, one := range []string{
		"pod pod-1 created PROVISIONING acme", "pod pod-1 changed RUNNING acme", "pod pod-1 changed TERMINATED acme", "volume vol-1 created", "volume vol-1 deleted",
		"s3-key " + sampleS3Key().ID + " deleted", "balance acme changed ok acme", "host host-a created", "datacenter dc-9 created", "account acme created",
		"template tpl-2 created  other", "registry reg-1 created", "secret token created", "ssh-keys acme created", "key key-1 created", "volume-backend b-std created",
	} {
		if !strings.Contains(all, one) {
			t.Errorf("no event tells %q", one)
		}
	}
	if strings.Contains(all, "pod-2") || strings.Contains(all, "pod-3") {
		t.Error("an event tells of a refused command")
	}
	if t.Failed() {
		t.Log(all)
	}
	for _, size := range []int{2, len(w.log)} {
		other := newWorld(t)
		for batch := range slices.Chunk(w.log, size) {
			if _, err := other.s.Apply(batch); err != nil {
				t.Fatal(err)
			}
		}
		if got, _, _ := changesOf(other.s, fleet.EventPlace{Seq: math.MaxUint32}); !slices.Equal(got, want) {
			t.Errorf("in batches of %d:\n%q\nwant\n%q", size, got, want)
		}
		for i, line := range want { // from each place on, the rest
			id, _, _ := strings.Cut(line, " ")
			place, ok := fleet.ParseEventPlace(id)
			if got, _, lost := changesOf(other.s, place); !ok || lost || !slices.Equal(got, want[i+1:]) {
				t.Errorf("after %s: %q", line, got)
			}
		}
	}
	if err := w.s.Close(); err != nil {
		t.Fatal(err)
	}
	w.open("boot-1")
	if _, _, lost := changesOf(w.s, fleet.EventPlace{Index: 1}); !lost {
		t.Error("a member that just started knows what was before")
	}
	if got, _, lost := changesOf(w.s, w.s.EndOfChanges()); lost || len(got) > 0 {
		t.Error(got, lost)
	}
}

func TestChangesInPieces(t *testing.T) {
	w := newWorld(t).settle()
	all, end, _ := changesOf(w.s, fleet.EventPlace{Seq: math.MaxUint32})
	at, n := fleet.EventPlace{Seq: math.MaxUint32}, 0
	for range all {
		var lost bool
		if at, lost = w.s.Changes(at, 1, func(fleet.EventPlace, *fleet.Event) bool { n++; return true }); lost {
			t.Fatal("lost")
		}
	}
	if n != len(all) {
		t.Errorf("%d events one by one, %d at once", n, len(all))
	}
	if last, _ := w.s.Changes(at, 1, func(fleet.EventPlace, *fleet.Event) bool { n++; return true }); last != end || n != len(all) {
		t.Errorf("the end is %v, want %v", last, end)
	}
}

// TestWhenABalanceIsLow rents for three dollars an hour.
func TestWhenABalanceIsLow(t *testing.T) {
	w := newWorld(t).priced()
	w.prepaid(true)
	status := func(add fleet.Money) string {
		t.Helper()
		w.must(AddCredit{Account: "acme", Amount: add, At: at(10)}, TickClock{At: at(10), Leap: time.Hour})
		all, _, _ := changesOf(w.s, fleet.EventPlace{Seq: math.MaxUint32})
		for _, line := range slices.Backward(all) {
			if words := strings.Fields(line); words[1] == "balance" {
				return words[4]
			}
		}
		return ""
	}
	for _, c := range []struct {
		add  fleet.Money
		want string
	}{{10 * fleet.Dollar, fleet.BalanceOK}, {fleet.Dollar, fleet.BalanceOK}} {
		if got := status(c.add); got != c.want {
			t.Errorf("without a pod: %s, want %s", got, c.want)
		}
	}
	w.create("pod-1", "host-a", 0)
	for _, c := range []struct {
		add  fleet.Money
		want string
	}{{fleet.Dollar / 1000, fleet.BalanceLow}, {1000 * fleet.Dollar, fleet.BalanceOK}, {-1100 * fleet.Dollar, fleet.BalanceOut}} {
		if got := status(c.add); got != c.want {
			t.Errorf("after %v: %s, want %s", c.add, got, c.want)
		}
	}
}

// TestAClusterIsTold when it is created, renamed and deleted, and not only of its members.
func TestAClusterIsTold(t *testing.T) {
	w := newWorld(t).settle().furnish()
	_, begin, _ := changesOf(w.s, w.s.EndOfChanges())
	w.must(clusterOf(theCluster, "p1", "p2"), Delete[fleet.Cluster]{Account: "acme", ID: string(theCluster)})
	got, _, _ := changesOf(w.s, begin)
	all := strings.Join(got, "\n")
	for _, one := range []string{"cluster " + string(theCluster) + " created", "cluster " + string(theCluster) + " deleted"} {
		if !strings.Contains(all, one) {
			t.Errorf("no event tells %q:\n%s", one, all)
		}
	}
}
