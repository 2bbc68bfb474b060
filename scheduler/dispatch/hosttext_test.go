package dispatch

import (
	"encoding/json"
	"io"
	"strings"
	"testing"
	"unicode/utf8"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/scheduler/dataconn"
)

func TestHostText(t *testing.T) {
	for _, tc := range []struct{ give, want string }{
		{"", ""},
		{"it is so", "it is so"},
		{strings.Repeat("x", dataconn.MaxHostText), strings.Repeat("x", dataconn.MaxHostText)},
		{strings.Repeat("x", dataconn.MaxHostText+1), strings.Repeat("x", dataconn.MaxHostText)},
		{"a\xff\xfeb", "a?b"},
		{strings.Repeat("x", dataconn.MaxHostText-1) + "ü", strings.Repeat("x", dataconn.MaxHostText-1) + "?"},
	} {
		if got := dataconn.HostText(tc.give); got != tc.want {
			t.Errorf("%.20q of %d bytes became %.20q of %d", tc.give, len(tc.give), got, len(got))
		}
	}
}

func FuzzHostText(f *testing.F) {
	f.Add("text")
	f.Add(strings.Repeat("\xff x", dataconn.MaxHostText))
	f.Fuzz(func(t *testing.T, s string) {
		if got := dataconn.HostText(s); len(got) > dataconn.MaxHostText || !utf8.ValidString(got) || len(s) <= dataconn.MaxHostText && utf8.ValidString(s) && got != s {
			t.Errorf("%q became %q", s, got)
		}
	})
}

// TestTextsOfAHostAreBounded: a host that is broken must fill neither the memory nor a client's terminal.
func TestTextsOfAHostAreBounded(t *testing.T) {
	w := newWire(t)
	long := strings.Repeat("€", 1<<18)
	bounded := func(what string, err error) {
		t.Helper()
		if err == nil || len(err.Error()) > dataconn.MaxHostText+100 || !utf8.ValidString(err.Error()) || !strings.Contains(err.Error(), "€€€") {
			t.Errorf("%s: an error of %d bytes", what, len(err.Error()))
		}
	}
	refuse := func(ask *agentrpc.OpenTunnel, stream agentrpc.Link_TunnelClient) {
		send(stream, &agentrpc.Frame{Id: ask.GetId(), Error: long})
	}
	breakOff := func(ask *agentrpc.OpenTunnel, stream agentrpc.Link_TunnelClient) {
		send(stream, &agentrpc.Frame{Id: ask.GetId()}, &agentrpc.Frame{Error: long, Code: "not_allowed", End: true})
	}
	w.host(refuse)
	_, err := w.server.OpenPort(w.ctx, testHost, testPod, 80)
	bounded("refused", err)
	w.host(breakOff)
	port, err := w.server.OpenPort(w.ctx, testHost, testPod, 80)
	check(t, err)
	_, err = port.Read(make([]byte, 10))
	bounded("port", err)
	check(t, port.Close())
	w.host(breakOff)
	r, err := w.server.ReadFiles(w.ctx, testHost, testPod, "/x")
	check(t, err)
	_, err = io.ReadAll(r)
	bounded("read", err)
	check(t, r.Close())
	w.host(breakOff)
	bounded("write", w.server.WriteFiles(w.ctx, testHost, testPod, "/x", strings.NewReader("")))
	bounded("log", func() error {
		w.host(breakOff)
		return w.server.Logs(w.ctx, testHost, testPod, fleet.LogQuery{}, func(fleet.LogLine) error { return nil })
	}())
	for text, want := range map[string]string{long: strings.Repeat("€", dataconn.MaxHostText/3) + "?", "a\xffb": "a\ufffdb", "": ""} {
		w.host(func(ask *agentrpc.OpenTunnel, stream agentrpc.Link_TunnelClient) {
			send(stream, &agentrpc.Frame{Id: ask.GetId()}, &agentrpc.Frame{
				Channel: uint32(fleet.ExecExit), Data: []byte(`{"code":7,"more":"` + long + `","error":"` + text + `"}`), End: true,
			})
		})
		x, err := w.server.Exec(w.ctx, testHost, testPod, fleet.ExecRequest{Command: []string{"x"}})
		check(t, err)
		f, err := x.Receive()
		check(t, err)
		var result fleet.ExecResult
		if err := json.Unmarshal(f.Data, &result); err != nil || f.Channel != fleet.ExecExit || result != (fleet.ExecResult{Code: 7, Error: want}) || len(f.Data) > dataconn.MaxHostText+100 {
			t.Errorf("an exit frame of %d bytes, %v", len(f.Data), err)
		}
		check(t, x.Close())
	}
}
