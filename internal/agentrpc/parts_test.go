package agentrpc

import (
	"testing"

	"google.golang.org/protobuf/proto"
)

func set(generation uint64, part uint32, more bool, pods ...string) *Down {
	full := &FullSet{Generation: generation}
	for _, id := range pods {
		full.Assignments = append(full.Assignments, &Assignment{PodId: id})
	}
	return &Down{Part: part, More: more, Kind: &Down_Full{Full: full}}
}

func TestPartsAreJoinedInOrder(t *testing.T) {
	beat := &Down{Kind: &Down_Beat{Beat: &Beat{}}}
	for name, c := range map[string]struct {
		in    []*Down
		pods  int // of the set that comes out last; -1: none does
		fails bool
	}{
		"one message":                {[]*Down{set(1, 0, false, "a")}, 1, false},
		"parts":                      {[]*Down{set(1, 0, true, "a"), set(1, 1, true, "b"), set(1, 2, false, "c")}, 3, false},
		"a beat in between":          {[]*Down{set(1, 0, true, "a"), beat, set(1, 1, false, "b")}, 2, false},
		"the end is missing":         {[]*Down{set(1, 0, true, "a"), set(1, 1, true, "b")}, -1, false},
		"begun anew":                 {[]*Down{set(1, 0, true, "a"), set(2, 0, true, "b"), set(2, 1, false, "c")}, 2, false},
		"begun anew, in one message": {[]*Down{set(1, 0, true, "a"), set(2, 0, false, "b")}, 1, false},
		"parts of what was begun anew": {
			[]*Down{set(1, 0, true, "a"), set(2, 0, false, "b"), set(1, 1, false, "c")}, 1, true,
		},
		"a part is missing": {[]*Down{set(1, 0, true, "a"), set(1, 2, false, "c")}, -1, true},
		"a part twice":      {[]*Down{set(1, 0, true, "a"), set(1, 1, true, "c"), set(1, 1, false, "c")}, -1, true},
		"no beginning":      {[]*Down{set(1, 1, false, "a")}, -1, true},
		"after the end":     {[]*Down{set(1, 0, true, "a"), set(1, 1, false, "b"), set(1, 2, false, "c")}, 2, true},
		"of another kind": {
			[]*Down{set(1, 0, true, "a"), {Part: 1, Kind: &Down_Peers{Peers: &PeerChange{}}}}, -1, true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			var p Parts
			pods, failed := -1, false
			for _, msg := range c.in {
				out, err := p.Add(msg)
				if failed = err != nil; failed {
					break
				}
				if full := out.GetFull(); full != nil {
					pods = len(full.GetAssignments())
				}
			}
			if pods != c.pods || failed != c.fails {
				t.Errorf("a set of %d pods, failed: %v", pods, failed)
			}
		})
	}
}

func TestPartsAreBounded(t *testing.T) {
	var p Parts
	for part := range uint32(maxParts) {
		if _, err := p.Add(set(1, part, true)); err != nil {
			t.Fatalf("part %d: %v", part, err)
		}
	}
	if _, err := p.Add(set(1, maxParts, false)); err == nil {
		t.Error("any number of parts is taken")
	}
	for over, want := range map[int]bool{0: true, 1: false} {
		p = Parts{}
		if _, err := p.Add(set(1, 0, true, "a")); err != nil {
			t.Fatal(err)
		}
		last := set(1, 1, false, "b")
		p.size = maxPartsBytes - proto.Size(last) + over
		if _, err := p.Add(last); (err == nil) != want {
			t.Errorf("%d bytes above the bound: %v", over, err)
		}
	}
}
