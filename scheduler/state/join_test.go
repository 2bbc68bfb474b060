package state

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"gantry/fleet"
)

// TestJoinOfACopiedMachine has a machine join whose id a host has already. It takes the host's place only where it is that machine.
func TestJoinOfACopiedMachine(t *testing.T) {
	long := 60 + int(awayLong/time.Second)
	lost := SetHostState{Host: "host-a", Epoch: 2, State: fleet.HostUnreachable, At: at(60)}
	for name, x := range map[string]struct {
		had, has string // hardware of the host, and of the machine that joins
		fate     Command
		at       int
		why      string // it is refused; empty: it is let in
	}{
		"connected":                              {at: 61, why: "is connected"},
		"connected, heard of long ago":           {at: long + 1, why: "is connected"},
		"connected, another board":               {had: "board-1", has: "board-2", at: 61, why: "another main board"},
		"connected, known to be the same":        {had: "board-1", has: "board-1", at: 61},
		"lost a moment ago":                      {had: "board-1", fate: lost, at: long - 1, why: "a moment ago"},
		"lost, and the clock was set back":       {fate: lost, at: 30, why: "a moment ago"},
		"lost a moment ago, known to be it":      {had: "board-1", has: "board-1", fate: lost, at: 61},
		"lost long ago":                          {has: "board-1", fate: lost, at: long},
		"lost long ago, another board":           {had: "board-1", has: "board-2", fate: lost, at: long, why: "another main board"},
		"removed, another board, a moment later": {had: "board-1", has: "board-2", fate: RemoveHost{Host: "host-a", At: at(60)}, at: 61},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t).settle()
			w.must(ConnectHost{Host: "host-a", MachineID: "machine-a", BootID: "boot", Hardware: x.had, Inventory: inventory("host-a"), At: at(60)})
			if x.fate != nil {
				w.must(x.fate)
			}
			tok := token("t2")
			tok.ExpiresAt = at(10_000)
			w.must(PutToken{tok, at(0)})
			join := JoinHost{Token: tok.ID, Hash: tok.Hash, Host: fleet.Host{ID: "host-new", MachineID: "machine-a", Hardware: x.has}, At: at(x.at)}
			err := w.do(join).Err
			there := false
			w.view(func(v *View) { _, there = v.Host("host-a") })
			var e *fleet.Error
			switch {
			case x.why == "" && (err != nil || there):
				t.Fatalf("%v; the machine has its old record: %t", err, there)
			case x.why == "":
				w.check()
				return
			case !errors.As(err, &e) || e.Code != fleet.CodeExists || !there:
				t.Fatalf("%v; the host has its record: %t", err, there)
			}
			for _, word := range []string{x.why, "name-host-a", "host remove host-a", "systemd-machine-id-setup"} {
				if !strings.Contains(e.Msg, word) {
					t.Errorf("%q does not say %q", e.Msg, word)
				}
			}
			// The token is as good as before, for the machine with an id of its own.
			join.Host.MachineID = "machine-new"
			w.must(join)
			w.check()
		})
	}
}

// TestCopiedMachinesJoinAtOnce has the second one join before the first one has connected.
func TestCopiedMachinesJoinAtOnce(t *testing.T) {
	w := newWorld(t).settle()
	join := func(id, machine, hardware string, s int) Command {
		tok := token(fleet.TokenID(fmt.Sprintf("token-%d-of-%s", s, id)))
		tok.ExpiresAt = at(10_000)
		w.must(PutToken{tok, at(0)})
		return JoinHost{Token: tok.ID, Hash: tok.Hash, Host: fleet.Host{ID: fleet.HostID(id), MachineID: machine, Hardware: hardware}, At: at(s)}
	}
	w.must(join("host-1", "machine-1", "", 60))
	w.refused(fleet.CodeExists, join("host-2", "machine-1", "", 61))
	w.must(join("host-2", "machine-1", "", 60+int(awayLong/time.Second))) // its answer was lost, perhaps
	// A machine whose board is known may come again at once.
	w.must(join("host-3", "machine-3", "board-3", 60), join("host-4", "machine-3", "board-3", 61))
	w.refused(fleet.CodeExists, join("host-5", "machine-3", "board-5", 62))
	w.check()
}

// A token that was used is kept for the request that it was used for, and is good for no other join.
func TestAUsedTokenIsKeptForItsRequest(t *testing.T) {
	w := newWorld(t)
	tok := token("t1")
	request := bytes.Repeat([]byte{7}, 32)
	join := JoinHost{Token: tok.ID, Hash: tok.Hash, Host: fleet.Host{ID: "host-a", MachineID: "machine-a"}, At: at(1), Request: request}
	w.must(PutToken{Token: tok, At: at(0)})
	short := join
	short.Request = request[:31]
	w.refused(fleet.CodeInvalid, short)
	w.must(join)
	w.view(func(v *View) {
		got, ok := v.Token(tok.ID)
		if !ok || got.Joined != "host-a" || !got.Answers(request) || got.Answers(bytes.Repeat([]byte{8}, 32)) || got.Answers(nil) {
			t.Errorf("got %+v, %v", got, ok)
		}
	})
	join.Host.ID = "host-b"
	w.refused(fleet.CodeUnauthorized, join)
	later := token("t2")
	later.ExpiresAt = at(2000)
	w.must(PutToken{Token: later, At: tok.ExpiresAt})
	w.view(func(v *View) {
		if _, ok := v.Token(tok.ID); ok {
			t.Error("it is kept beyond its time")
		}
	})
}
