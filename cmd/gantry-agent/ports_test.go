package main

import (
	"fmt"
	"net/netip"
	"testing"
)

func TestPortFlags(t *testing.T) {
	for _, c := range []struct {
		flags portFlags
		good  bool
	}{
		{portFlags{"", "30000-39999"}, true},
		{portFlags{"203.0.113.7", "1024-65535"}, true},
		{portFlags{"10.1.2.3", "30000-30000"}, true},
		{portFlags{"", "0"}, true},
		{portFlags{"", ""}, false},
		{portFlags{"", "30000"}, false},
		{portFlags{"", "30001-30000"}, false},
		{portFlags{"", "1023-2000"}, false},
		{portFlags{"", "30000-65536"}, false},
		{portFlags{"", "a-b"}, false},
		{portFlags{"", "-1-5"}, false},
		{portFlags{"127.0.0.1", "0"}, false},
		{portFlags{"0.0.0.0", "0"}, false},
		{portFlags{"169.254.1.1", "0"}, false},
		{portFlags{"2001:db8::1", "0"}, false},
		{portFlags{"host.example", "0"}, false},
	} {
		if err := c.flags.validate(); (err == nil) != c.good {
			t.Errorf("%+v: %v", c.flags, err)
		}
	}
}

// fakeAddrs is a host with one address of the default route and some others.
type fakeAddrs struct {
	public string
	others []string
}

func (f fakeAddrs) PublicAddr() (netip.Addr, error) {
	if f.public == "" {
		return netip.Addr{}, nil
	}
	return netip.ParseAddr(f.public)
}

func (f fakeAddrs) HasAddr(want netip.Addr) (bool, error) {
	for _, a := range append(f.others, f.public) {
		if a == want.String() {
			return true, nil
		}
	}
	return false, nil
}

func TestPublish(t *testing.T) {
	const ports = "30000-30009"
	for _, c := range []struct {
		name  string
		flags portFlags
		host  fakeAddrs
		want  string
	}{
		{"default route", portFlags{"", ports}, fakeAddrs{public: "203.0.113.7"}, "203.0.113.7 at [203.0.113.7] 30000-30009"},
		{"no address yet", portFlags{"", ports}, fakeAddrs{}, "invalid IP at [] 30000-30009"},
		{"nothing wanted", portFlags{"203.0.113.7", "0"}, fakeAddrs{public: "203.0.113.7"}, "invalid IP at [] 0-0"},
		{
			"another one",
			portFlags{"203.0.113.9", ports},
			fakeAddrs{public: "10.0.0.2", others: []string{"203.0.113.9"}},
			"203.0.113.9 at [203.0.113.9] 30000-30009",
		},
		{
			"translated on the way",
			portFlags{"203.0.113.9", ports},
			fakeAddrs{public: "10.0.0.2"},
			"203.0.113.9 at [10.0.0.2 203.0.113.9] 30000-30009",
		},
		{"translated, and none of its own yet", portFlags{"203.0.113.9", ports}, fakeAddrs{}, "invalid IP at [] 30000-30009"},
	} {
		p, err := c.flags.publish(c.host)
		if got := fmt.Sprintf("%v at %v %d-%d", p.IP, p.At, p.From, p.To); err != nil || got != c.want {
			t.Errorf("%s: %s, %v; want %s", c.name, got, err, c.want)
		}
	}
}
