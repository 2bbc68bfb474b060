package fleet

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestNoCreditTellsWhatItTakes(t *testing.T) {
	for _, c := range []struct {
		hourly, balance Money
		want            string
	}{
		{MoneyUSD(0.0605), MoneyUSD(0.0109), "it takes the cost of one hour, $0.061; the balance is $0.010"},
		{MoneyUSD(2), MoneyUSD(-0.0001), "it takes the cost of one hour, $2.000; the balance is -$0.001"},
		{1, 0, "it takes the cost of one hour, $0.001; the balance is $0.000"},
	} {
		var e *Error
		if err := NoCredit("too low", c.hourly, c.balance); !errors.As(err, &e) || CodeOf(err) != CodeNoCredit || e.Msg != "too low" || len(e.Details) != 1 || e.Details[0] != c.want {
			t.Errorf("got %+v", err)
		}
	}
}

// TestMoves is decisions.md, "Pod life", row by row: every (status, trigger) pair is here.
func TestMoves(t *testing.T) {
	const (
		p, s, r, x, e, g = StatusProvisioning, StatusStarting, StatusRunning, StatusExited, StatusError, StatusTerminated
		no               = PodStatus("")
	)
	triggers := slices.Concat(Actions(), Events(), []Trigger{ActionUpdate})
	//           start stop restart terminate | waiting starting running exited failed reboot | update
	table := map[PodStatus][]PodStatus{
		p: {no, x, no, g, p, s, r, x, e, p, p},
		s: {no, x, no, g, s, s, r, x, e, p, p},
		r: {no, x, s, g, no, no, r, x, e, p, s},
		x: {p, no, no, g, no, no, no, no, no, no, x},
		e: {p, no, no, g, no, no, no, no, no, no, e},
		g: {no, no, no, no, no, no, no, no, no, no, no},
	}
	if slices.Contains(Actions(), ActionUpdate) || slices.Contains(Events(), ActionUpdate) {
		t.Error("an update is a public action, or a host may report it")
	}
	if len(table) != len(PodStatuses()) {
		t.Fatal("the table lacks a status")
	}
	for _, from := range PodStatuses() {
		for i, trigger := range triggers {
			to, ok := from.Next(trigger)
			if to != table[from][i] || ok != (table[from][i] != no) {
				t.Errorf("%s --%s--> %q %v, want %q", from, trigger, to, ok, table[from][i])
			}
		}
	}
}

func TestAllowedActions(t *testing.T) {
	for _, c := range []struct {
		status PodStatus
		goal   Goal
		want   []Trigger
	}{
		{StatusProvisioning, GoalRun, []Trigger{ActionStop, ActionTerminate}},
		{StatusStarting, GoalRun, []Trigger{ActionStop, ActionTerminate}},
		{StatusRunning, GoalRun, []Trigger{ActionStop, ActionRestart, ActionTerminate}},
		{StatusRunning, GoalStop, []Trigger{ActionTerminate}},
		{StatusProvisioning, GoalStop, []Trigger{ActionTerminate}},
		{StatusExited, GoalStop, []Trigger{ActionStart, ActionTerminate}},
		{StatusError, GoalStop, []Trigger{ActionStart, ActionTerminate}},
		{StatusTerminated, GoalGone, []Trigger{}},
	} {
		if d := cmp.Diff(c.want, AllowedActions(c.status, c.goal)); d != "" {
			t.Errorf("%s, goal %s (-want +got):\n%s", c.status, c.goal, d)
		}
	}
}

func TestIDs(t *testing.T) {
	seen := map[string]bool{}
	for range 2000 {
		id := NewID()
		if !ValidID(id) || seen[id] {
			t.Fatalf("id %q is bad or came twice", id)
		}
		seen[id] = true
	}
	for _, bad := range []string{"", "1bcdefghijklmn", "abcdefghijklm", "abcdefghijklmno", "Abcdefghijklmn", "abc-efghijklmn"} {
		if ValidID(bad) {
			t.Errorf("%q passes as an id", bad)
		}
	}
}

func TestAPIKeys(t *testing.T) {
	key := NewAPIKey()
	if !ValidAPIKey(key.Reveal()) {
		t.Errorf("a new key is not valid")
	}
	for _, bad := range []string{"", "gk_", key.Reveal()[1:], key.Reveal() + "a", "gk_" + strings.Repeat("-", 43)} {
		if ValidAPIKey(bad) {
			t.Errorf("%q passes as a key", bad)
		}
	}
	if hint := KeyHint(key); len(hint) != 9 || !strings.HasPrefix(key.Reveal(), hint) {
		t.Errorf("hint %q", hint)
	}
}

func TestSecretIsNotShown(t *testing.T) {
	s := Secret("hunter2")
	data, err := json.Marshal(map[string]Secret{"s": s})
	if err != nil {
		t.Fatal(err)
	}
	for _, shown := range []string{fmt.Sprint(s), fmt.Sprintf("%v %+v %#v %s %q", s, s, s, s, s), s.LogValue().String(), string(data)} {
		if strings.Contains(shown, "hunter2") {
			t.Errorf("shown: %s", shown)
		}
	}
}

func TestParseArgs(t *testing.T) {
	for _, c := range []struct {
		args string
		want Command
		bad  bool
	}{
		{args: ""},
		{args: "  \n"},
		{args: "sleep 10", want: Command{Cmd: []string{"sleep", "10"}}},
		{args: `sh -c 'echo "a b"; sleep 1'`, want: Command{Cmd: []string{"sh", "-c", `echo "a b"; sleep 1`}}},
		{args: `a "b \"c\" \n $x" d\ e ''`, want: Command{Cmd: []string{"a", `b "c" \n $x`, "d e", ""}}},
		{args: "a\\\nb", want: Command{Cmd: []string{"ab"}}},
		{args: `{"cmd":["a","b"],"entrypoint":["c"]}`, want: Command{Cmd: []string{"a", "b"}, Entrypoint: []string{"c"}}},
		{args: `{"cmd":[]}`, want: Command{Cmd: []string{}}},
		{args: `sh -c 'x`, bad: true},
		{args: `a "b`, bad: true},
		{args: `a \`, bad: true},
		{args: `{"cmd":"a"}`, bad: true},
		{args: `{"other":1}`, bad: true},
		{args: `{"cmd":[]} {}`, bad: true},
		{args: `{`, bad: true},
	} {
		got, err := ParseArgs(c.args)
		if (err != nil) != c.bad {
			t.Errorf("%q: error %v, want one: %v", c.args, err, c.bad)
		}
		if d := cmp.Diff(c.want, got); !c.bad && d != "" {
			t.Errorf("%q (-want +got):\n%s", c.args, d)
		}
	}
}

func FuzzParseArgs(f *testing.F) {
	for _, s := range []string{"", "a 'b c' \"d\\\"\" \\e", `{"cmd":["x"]}`, "'"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		cmd, err := ParseArgs(s)
		if err != nil || strings.HasPrefix(strings.TrimSpace(s), "{") {
			return
		}
		// Quoting each word again must give the same words.
		var quoted []string
		for _, w := range cmd.Cmd {
			quoted = append(quoted, "'"+strings.ReplaceAll(w, "'", `'\''`)+"'")
		}
		again, err := ParseArgs(strings.Join(quoted, " "))
		if err != nil || !slices.Equal(cmd.Cmd, again.Cmd) {
			t.Errorf("%q: %q, then %q, %v", s, cmd.Cmd, again.Cmd, err)
		}
	})
}

func TestErrorCodes(t *testing.T) {
	wrapped := fmt.Errorf("outer: %w", NotFound("pod"))
	if CodeOf(wrapped) != CodeNotFound || CodeOf(nil) != "" || CodeOf(fmt.Errorf("x")) != CodeInternal {
		t.Error("codes are not found through wrapping")
	}
}

func TestMoney(t *testing.T) {
	for usd, want := range map[float64]Money{0.25: 250_000_000, 2.69: 2_690_000_000, -0.1: -100_000_000, 0: 0} {
		if got := MoneyUSD(usd); got != want || got.USD() != usd {
			t.Errorf("%v USD is %d, back %v", usd, got, got.USD())
		}
	}
}

func TestAccess(t *testing.T) {
	all, _ := Preset("all")
	read, _ := Preset("readOnly")
	who := Principal{Can: read}
	if !who.May(GroupPods, AccessRead) || who.May(GroupPods, AccessWrite) || who.May(GroupAdmin, AccessRead) {
		t.Error("readOnly may too much or too little")
	}
	if (Principal{Can: all}).May(GroupAdmin, AccessRead) {
		t.Error("all holds admin")
	}
	if _, ok := Preset("root"); ok {
		t.Error("an unknown preset is known")
	}
}
