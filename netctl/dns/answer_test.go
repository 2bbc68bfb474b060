package dns

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

// Two accounts with the same range, and a pod that is in two overlays.
var (
	alice  = netip.MustParseAddr("10.88.0.2")
	bob    = netip.MustParseAddr("10.88.0.3")
	both   = netip.MustParseAddr("10.88.0.4")
	early  = netip.MustParseAddr("10.88.0.5") // whose overlay has not come
	nobody = netip.MustParseAddr("10.88.0.9")
)

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func testBase(upstreams ...netip.AddrPort) Base {
	return Base{
		Suffixes:  []string{"gantry.internal", "RunPod.internal"},
		Ranges:    []netip.Prefix{netip.MustParsePrefix("10.64.0.0/10"), netip.MustParsePrefix("10.88.0.0/13")},
		Upstreams: upstreams,
	}
}

func testPods() map[netip.Addr][]uint32 {
	return map[netip.Addr][]uint32{alice: {1}, bob: {2}, both: {1, 3}, early: {9}}
}

func testOverlays() []Overlay {
	return []Overlay{
		{VNI: 1, Members: []Name{
			{addr("10.64.0.2"), "podaaa", "web"},
			{addr("10.64.0.3"), "podbbb", "twin"},
			{addr("10.64.0.4"), "podccc", "TWIN"},
			{addr("10.64.0.5"), "podddd", "podaaa"}, // the id of another
			{addr("10.64.0.6"), "podeee", "My Pod"},
			{addr("10.64.0.7"), "PodFFF", "a.b"},
		}},
		{VNI: 2, Members: []Name{{addr("10.64.0.2"), "podxxx", "db"}, {addr("10.64.0.3"), "podyyy", "web"}}},
		{VNI: 3, Members: []Name{{addr("10.70.0.2"), "podaaa", "web"}, {addr("10.70.0.3"), "podzzz", "other"}}},
	}
}

func testServer() *Server {
	s := NewServer(netip.AddrPort{})
	s.Set(testBase())
	s.SetPods(testPods())
	for _, o := range testOverlays() {
		s.SetOverlay(o.VNI, o.Members)
	}
	return s
}

func query(name string, kind uint16) *dns.Msg {
	m := new(dns.Msg).SetQuestion(name, kind)
	m.SetEdns0(udpSize, false)
	return m
}

// asked says in words what a server makes of a question.
func asked(t *testing.T, s *Server, from netip.Addr, q *dns.Msg) string {
	t.Helper()
	packet, err := q.Pack()
	if err != nil {
		t.Fatal(err)
	}
	tab := s.now.Load()
	v := s.judge(tab, tab.pods[from], packet)
	switch {
	case v.question == nil:
		return "silence"
	case v.answer == nil:
		return "forwarded"
	}
	out, err := pack(v.answer, v.question, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	return words(t, q, out)
}

func words(t *testing.T, q *dns.Msg, packet []byte) string {
	t.Helper()
	var m dns.Msg
	if err := m.Unpack(packet); err != nil {
		t.Fatal(err)
	}
	if m.Id != q.Id || !m.Response || len(m.Question) == 1 && len(q.Question) > 0 && m.Question[0] != q.Question[0] {
		t.Errorf("%v is no answer to %v", m, q)
	}
	out := []string{dns.RcodeToString[m.Rcode]}
	for _, rr := range slices.Concat(m.Answer, m.Ns) {
		switch rr := rr.(type) {
		case *dns.A:
			out = append(out, rr.A.String())
		case *dns.PTR:
			out = append(out, rr.Ptr)
		case *dns.SOA:
			out = append(out, fmt.Sprintf("SOA %s %d %d", rr.Hdr.Name, rr.Hdr.Ttl, rr.Minttl))
		default:
			out = append(out, dns.TypeToString[rr.Header().Rrtype])
		}
	}
	return strings.Join(out, " ")
}

func TestNames(t *testing.T) {
	s := testServer()
	const noName, noData = "NXDOMAIN SOA gantry.internal. 5 5", "NOERROR SOA gantry.internal. 5 5"
	for _, c := range []struct {
		from netip.Addr
		name string
		kind uint16
		want string
	}{
		{alice, "podaaa.gantry.internal.", dns.TypeA, "NOERROR 10.64.0.2"},
		{alice, "web.gantry.internal.", dns.TypeA, "NOERROR 10.64.0.2"},
		{alice, "wEb.GaNtRy.InTeRnAl.", dns.TypeA, "NOERROR 10.64.0.2"},
		{alice, "podfff.gantry.internal.", dns.TypeA, "NOERROR 10.64.0.7"},
		{alice, "web.runpod.internal.", dns.TypeA, "NOERROR 10.64.0.2"},
		{alice, "twin.gantry.internal.", dns.TypeA, noName},
		{alice, "podbbb.gantry.internal.", dns.TypeA, "NOERROR 10.64.0.3"},
		{alice, `my\ pod.gantry.internal.`, dns.TypeA, noName},
		{alice, "a.b.gantry.internal.", dns.TypeA, noName},
		{alice, "x.podaaa.gantry.internal.", dns.TypeA, noName},
		{alice, "web.gantry.internal.", dns.TypeAAAA, noData},
		{alice, "web.gantry.internal.", dns.TypeANY, "NOERROR HINFO"},
		{alice, "gantry.internal.", dns.TypeA, noData},
		{alice, "gantry.internal.", dns.TypeSOA, noData},
		{alice, "none.gantry.internal.", dns.TypeAAAA, noName},
		// Another account's names, and its addresses, which are the same.
		{alice, "podxxx.gantry.internal.", dns.TypeA, noName},
		{alice, "db.gantry.internal.", dns.TypeA, noName},
		{bob, "web.gantry.internal.", dns.TypeA, "NOERROR 10.64.0.3"},
		{bob, "2.0.64.10.in-addr.arpa.", dns.TypePTR, "NOERROR podxxx.gantry.internal."},
		{alice, "2.0.64.10.in-addr.arpa.", dns.TypePTR, "NOERROR podaaa.gantry.internal."},
		{alice, "2.0.64.10.in-addr.arpa.", dns.TypeA, "NOERROR SOA 0.64.10.in-addr.arpa. 5 5"},
		{alice, "9.9.64.10.in-addr.arpa.", dns.TypePTR, "NXDOMAIN SOA 9.64.10.in-addr.arpa. 5 5"},
		{alice, "2.0.88.10.in-addr.arpa.", dns.TypePTR, "NXDOMAIN SOA 0.88.10.in-addr.arpa. 5 5"},
		{alice, "64.10.in-addr.arpa.", dns.TypeNS, "NXDOMAIN SOA 64.10.in-addr.arpa. 5 5"},
		{alice, "0-31.1.64.10.in-addr.arpa.", dns.TypePTR, "NXDOMAIN SOA 1.64.10.in-addr.arpa. 5 5"},
		{alice, "x.2.0.64.10.in-addr.arpa.", dns.TypePTR, "NXDOMAIN SOA 0.64.10.in-addr.arpa. 5 5"},
		{alice, "1.1.1.1.in-addr.arpa.", dns.TypePTR, "forwarded"},
		{alice, "256.64.10.in-addr.arpa.", dns.TypePTR, "NXDOMAIN SOA 64.10.in-addr.arpa. 5 5"},
		{alice, "10.in-addr.arpa.", dns.TypeNS, "forwarded"},
		// In two overlays.
		{both, "podaaa.gantry.internal.", dns.TypeA, "NOERROR 10.64.0.2 10.70.0.2"},
		{both, "other.gantry.internal.", dns.TypeA, "NOERROR 10.70.0.3"},
		{both, "web.gantry.internal.", dns.TypeA, "NOERROR 10.64.0.2 10.70.0.2"},
		// Not said before it is known.
		{early, "web.gantry.internal.", dns.TypeA, "SERVFAIL"},
		{early, "2.0.64.10.in-addr.arpa.", dns.TypePTR, "SERVFAIL"},
		{early, "example.com.", dns.TypeA, "forwarded"},
		{nobody, "web.gantry.internal.", dns.TypeA, "REFUSED"},
		{nobody, "example.com.", dns.TypeA, "REFUSED"},
		{alice, "example.com.", dns.TypeA, "forwarded"},
		{alice, "gantry.internal.example.com.", dns.TypeA, "forwarded"},
		{alice, "xgantry.internal.", dns.TypeA, "forwarded"},
		{alice, `x\.gantry.internal.`, dns.TypeA, noName},
		{alice, "example.com.", dns.TypeANY, "NOERROR HINFO"},
		{alice, "example.com.", dns.TypeAXFR, "REFUSED"},
		{alice, "example.com.", dns.TypeTSIG, "REFUSED"},
		{alice, "example.com.", dns.TypeNone, "FORMERR"},
	} {
		if got := asked(t, s, c.from, query(c.name, c.kind)); got != c.want {
			t.Errorf("%s asks for %s %s: %s, want %s", c.from, c.name, dns.TypeToString[c.kind], got, c.want)
		}
	}
}

func TestKindsOfMessages(t *testing.T) {
	s := testServer()
	for _, c := range []struct {
		what, want string
		with       func(*dns.Msg)
	}{
		{"an answer", "silence", func(m *dns.Msg) { m.Response = true }},
		{"an update", "NOTIMP", func(m *dns.Msg) { m.Opcode = dns.OpcodeUpdate }},
		{"another class", "REFUSED", func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassCHAOS }},
		{"two questions", "FORMERR", func(m *dns.Msg) { m.Question = append(m.Question, m.Question[0]) }},
		{"no question", "FORMERR", func(m *dns.Msg) { m.Question = nil }},
		{"an answer in it", "FORMERR", func(m *dns.Msg) { m.Answer = []dns.RR{minimal("x.")} }},
		{"another record", "FORMERR", func(m *dns.Msg) { m.Extra = []dns.RR{minimal("x.")} }},
		{"two EDNS0", "FORMERR", func(m *dns.Msg) { m.Extra = append(m.Extra, m.Extra[0]) }},
		{"a later EDNS", "BADVERS", func(m *dns.Msg) { m.IsEdns0().SetVersion(1) }},
		{"no EDNS", "NOERROR 10.64.0.2", func(m *dns.Msg) { m.Extra = nil }},
	} {
		q := query("web.gantry.internal.", dns.TypeA)
		c.with(q)
		got := asked(t, s, alice, q)
		if strings.HasPrefix(got, "BADSIG") { // the same number
			got = "BADVERS"
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", c.what, got, c.want)
		}
	}
}

// TestChangesOfAnOverlay: differences lead to what the whole would.
func TestChangesOfAnOverlay(t *testing.T) {
	s := testServer()
	step := func(set []Name, gone []netip.Addr, name, want string) {
		t.Helper()
		if err := s.ChangeOverlay(1, set, gone); err != nil {
			t.Fatal(err)
		}
		if got := asked(t, s, alice, query(name, dns.TypeA)); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	const noName = "NXDOMAIN SOA gantry.internal. 5 5"
	step(nil, []netip.Addr{addr("10.64.0.3")}, "twin.gantry.internal.", "NOERROR 10.64.0.4")
	step([]Name{{addr("10.64.0.3"), "podbbb", "twin"}}, nil, "twin.gantry.internal.", noName)
	step([]Name{{addr("10.64.0.3"), "podbbb", "renamed"}}, nil, "renamed.gantry.internal.", "NOERROR 10.64.0.3")
	step([]Name{{addr("10.64.0.2"), "podnew", "web"}}, nil, "podaaa.gantry.internal.", "NOERROR 10.64.0.5") // now only a name
	step([]Name{{addr("10.64.9.9"), "podaaa", "x"}}, nil, "podaaa.gantry.internal.", "NOERROR 10.64.9.9")
	want := []Name{}
	for i := range 500 {
		want = append(want, Name{addr(fmt.Sprintf("10.64.%d.%d", i/200, i%200)), fmt.Sprintf("pod%03d", i*7%500), fmt.Sprintf("n%d", i%490)})
	}
	set, gone := difference(s.now.Load().overlays[1].members, sorted(want))
	step(set, gone, "pod007.gantry.internal.", "NOERROR 10.64.0.1")
	whole := (&overlay{}).changed(want, nil)
	if got := s.now.Load().overlays[1]; !slices.Equal(got.members, whole.members) || !slices.Equal(got.labels, whole.labels) {
		t.Error("differences lead elsewhere")
	}
	if s.ChangeOverlay(77, nil, nil) == nil {
		t.Error("an overlay that is not there was changed")
	}
}

func TestBudget(t *testing.T) {
	var b budget
	take := func(at int64, n int) (taken int) {
		for range n {
			if b.take(at) {
				taken++
			}
		}
		return taken
	}
	const second = int64(1e9)
	if n := take(second, 1000); n != podBurst {
		t.Errorf("%d at once", n)
	}
	if n := take(2*second, 1000); n != podRate {
		t.Errorf("%d a second later", n)
	}
	if n := take(100*second, 1000); n != podBurst {
		t.Errorf("%d after a rest", n)
	}
}

// FuzzPacket: whatever arrives, from a pod or an upstream, gets a proper answer or none, and what is internal stays inside.
func FuzzPacket(f *testing.F) {
	for _, name := range []string{"web.gantry.internal.", "example.com.", "2.0.64.10.in-addr.arpa.", "."} {
		for _, kind := range []uint16{dns.TypeA, dns.TypeANY, dns.TypePTR, dns.TypeAXFR} {
			packet, err := query(name, kind).Pack()
			if err != nil {
				f.Fatal(err)
			}
			f.Add(packet)
		}
	}
	s := testServer()
	t := s.now.Load()
	asker := t.pods[alice]
	f.Fuzz(func(test *testing.T, packet []byte) {
		v := s.judge(t, asker, packet)
		switch {
		case v.question == nil:
		case v.answer == nil:
			name := dns.CanonicalName(v.question.Question[0].Name)
			if _, _, ok := t.base.internal(name); ok {
				test.Errorf("%s would leave the host", name)
			}
			if _, err := upstreamQuestion(v.question).Pack(); err != nil {
				test.Errorf("%s cannot be asked for: %v", name, err)
			}
		default:
			out, err := pack(v.answer, v.question, false, nil)
			if err != nil || len(out) > udpSize {
				test.Fatalf("%d bytes, %v", len(out), err)
			}
			var m dns.Msg
			if err := m.Unpack(out); err != nil || m.Id != v.question.Id || !m.Response {
				test.Errorf("%v, %v", m, err)
			}
		}
		q := upstreamQuestion(query("example.com.", dns.TypeA))
		if len(packet) > 2 {
			q.Id = uint16(packet[0])<<8 | uint16(packet[1])
		}
		if a := answerTo(q, packet); a != nil {
			out, err := pack(replyWith(q, a), q, false, nil)
			if err == nil && len(out) > udpSize {
				test.Errorf("an answer of %d bytes", len(out))
			}
		}
	})
}
