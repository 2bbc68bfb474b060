package membership

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"gantry/fleet"
	"gantry/scheduler/replica"
)

// cluster draws a look from one line for each member: id, v or n (its suffrage in Raft) or - (not there), and
// words: dead, close, nonvoter, removed, replaces=ID, level=N, at=ADDRESS.
func cluster(lines ...string) look {
	l := look{self: "a", level: 1, heard: map[fleet.MemberID]heard{}}
	for _, line := range lines {
		words := strings.Fields(line)
		m := fleet.Member{ID: fleet.MemberID(words[0]), Address: words[0] + ":1", Level: 1}
		h := heard{answers: true, known: true, close: steady, level: 1, address: m.Address}
		for _, w := range words[2:] {
			key, value, _ := strings.Cut(w, "=")
			switch key {
			case "dead":
				h.answers, h.close = false, 0
			case "far":
				h.close = steady - 1
			case "nonvoter":
				m.NonVoter = true
			case "removed":
				m.RemovedAt = time.Unix(1, 0)
			case "replaces":
				m.Replaces = fleet.MemberID(value)
			case "level":
				h.level = uint64(value[0] - '0')
			case "at":
				h.address = value
			}
		}
		if words[1] != "-" {
			l.servers = append(l.servers, replica.Server{
				Member: replica.Member{ID: words[0], Address: m.Address}, Voter: words[1] == "v",
			})
		}
		l.members = append(l.members, m)
		l.heard[m.ID] = h
	}
	return l
}

// text writes a plan down.
func (p plan) text() string {
	var out []string
	for _, m := range p.record {
		out = append(out, fmt.Sprintf("record %s %s %d", m.ID, m.Address, m.Level))
	}
	for _, s := range p.steps {
		word := [...]string{"expel", "add", "promote", "demote", "retire"}[s.kind] + " " + s.member.ID
		if s.kind == add {
			word += " " + s.member.Address
		}
		out = append(out, word)
	}
	if p.raise > 0 {
		out = append(out, fmt.Sprint("raise ", p.raise))
	}
	return strings.Join(out, "; ")
}

func TestDecide(t *testing.T) {
	for _, c := range []struct {
		name string
		look look
		want string
	}{
		{"nothing to do", cluster("a v", "b v", "c v"), ""},
		{"a new one that answers", cluster("a v", "b -"), "add b b:1"},
		{"a new one that was never seen", cluster("a v", "b - dead"), ""},
		{"caught up", cluster("a v", "b n"), "promote b"},
		{"behind", cluster("a v", "b n far"), ""},
		{"without a vote for good", cluster("a v", "b n nonvoter"), ""},
		{"its vote is taken", cluster("a v", "b v", "c v nonvoter"), "demote c"},
		{"removed", cluster("a v", "b v removed", "c - removed"), "expel b"},
		{"replaced", cluster("a v", "b v dead", "c v replaces=b"), "retire b"},
		{"replaced before", cluster("a v", "b - removed", "c v replaces=b"), ""},
		{"replaces, and does not vote yet", cluster("a v", "b v dead", "c n far replaces=b"), ""},
		{"begins anew at its address", cluster("a v", "b - dead", "c - at=b:1 replaces=b"), "record c b:1 1; add c b:1"},
		{"the one before answers still", cluster("a v", "b -", "c - dead replaces=b"), ""},
		{"the one before is in Raft still", cluster("a v", "b v dead", "c - at=b:1 replaces=b"), "record c b:1 1"},
		{"never votes, and has begun anew", cluster("a v", "b - dead", "c n nonvoter replaces=b"), "retire b"},
		{"removed and new at once", cluster("a v", "b - ", "c n", "d v removed"), "expel d; add b b:1; promote c"},
		{"moved", cluster("a v", "b v at=x:2"), "record b x:2 1; add b x:2"},
		{"all understand the next level", cluster("a v level=2", "b v level=2"), "record a a:1 2; record b b:1 2; raise 2"},
		{"the lowest of all counts", cluster("a v level=4", "b v level=3"), "record a a:1 4; record b b:1 3; raise 3"},
		{"one does not", cluster("a v level=2", "b v"), "record a a:1 2"},
		{"one is not heard", cluster("a v level=2", "b v level=2 dead"), "record a a:1 2"},
		{"a removed one does not count", cluster("a v level=2", "b - removed"), "record a a:1 2; raise 2"},
	} {
		if got := decide(c.look).text(); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestMayGo(t *testing.T) {
	for _, c := range []struct {
		id    string
		force bool
		look  look
		says  string
	}{
		{"b", false, cluster("a v", "b v", "c v"), ""},
		{"b", false, cluster("a v", "b v dead", "c v"), ""},
		{"b", false, cluster("a v", "b v", "c v dead"), "only 1 answer"},
		{"b", true, cluster("a v", "b v", "c v dead"), ""},
		{"a", false, cluster("a v", "b v", "c v dead"), "only 1 answer"},
		{"a", false, cluster("a v"), "last scheduler"},
		{"a", true, cluster("a v", "b n"), "last scheduler"},
		{"b", false, cluster("a v", "b n"), ""},
		{"b", false, cluster("a v", "b v"), ""},
		{"b", false, cluster("a v", "b v", "c v", "d v dead", "e v dead"), "only 2 answer"},
		{"d", false, cluster("a v", "b v", "c v", "d v dead", "e v dead"), ""},
		{"b", false, cluster("a v", "b v", "c v removed"), "only 1 answer"},
	} {
		err := mayGo(fleet.MemberID(c.id), c.look, c.force)
		if (err == nil) != (c.says == "") || err != nil && (!strings.Contains(err.Error(), c.says) || fleet.CodeOf(err) != fleet.CodeConflictRule) {
			t.Errorf("%s of %+v: %v, want %q", c.id, c.look.servers, err, c.says)
		}
	}
}

func TestIsClose(t *testing.T) {
	for _, c := range []struct {
		applied, last uint64
		want          bool
	}{{0, 10, false}, {5, 10, false}, {6, 10, true}, {10, 10, true}, {12, 10, true}, {4000, 5000, false}, {4001, 5000, true}} {
		if got := isClose(c.applied, c.last); got != c.want {
			t.Errorf("%d of %d: %v", c.applied, c.last, got)
		}
	}
}

func TestValidAddress(t *testing.T) {
	for address, want := range map[string]bool{
		"10.0.0.1:8443": true, "host.example:1": true, "[::1]:8443": true,
		"": false, ":8443": false, "0.0.0.0:8443": false, "[::]:8443": false, "host": false, "host:": false, "host:0": false,
		"host:65536": false, "host:http": false, strings.Repeat("x", 300) + ":1": false,
	} {
		if got := ValidAddress(address); got != want {
			t.Errorf("%q: %v", address, got)
		}
	}
}
