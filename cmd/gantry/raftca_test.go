package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gantry/test/plane"
)

// caJSON is a cluster whose new CA signs while two hosts are waited for.
const caJSON = `{"cas":[
	{"digest":"9f2c4b7d1e6a8053","state":"signs","notBefore":"2026-10-01T12:00:00.000Z","notAfter":"2036-10-01T12:00:00.000Z"},
	{"digest":"03b1c8d2e4f5a697","state":"retires","notBefore":"2017-10-01T12:00:00.000Z","notAfter":"2027-10-01T12:00:00.000Z"}],
	"step":"renews","begunAt":"2026-10-01T12:00:00.000Z","signsAt":"2026-10-01T12:01:00.000Z","endsBy":"2026-10-08T13:01:00.000Z","waiting":2,"total":5,"nodes":[
	{"kind":"host","id":"h7d2k9s4f1g6j3","name":"gpu-01\u001b[31m","ca":"03b1c8d2e4f5a697","endsAt":"2026-10-03T12:00:00.000Z","waits":"its certificate is not of the new CA yet"},
	{"kind":"host","id":"j7d2k9s4f1g6j3","name":"gpu-02","ca":null,"endsAt":null,"waits":"its certificate is not of the new CA yet"},
	{"kind":"host","id":"k7d2k9s4f1g6j3","name":"gpu-03","ca":"other","endsAt":"2026-10-05T12:00:00.000Z","waits":null},
	{"kind":"scheduler","id":"member00000001","name":"sched-1","ca":"9f2c4b7d1e6a8053","endsAt":"2026-10-31T12:00:00.000Z","waits":null}]}`

func TestTheCAIsShown(t *testing.T) {
	got, _ := gantry(t, setup{api: map[string][]string{"GET /admin/v1/ca": {"200 " + caJSON}}}, "raft", "ca", "show")
	want := result{Out: `CA                STATE    BEGINS                       ENDS
9f2c4b7d1e6a8053  signs    2026-10-01 12:00:00.000 UTC  2036-10-01 12:00:00.000 UTC
03b1c8d2e4f5a697  retires  2017-10-01 12:00:00.000 UTC  2027-10-01 12:00:00.000 UTC
The new CA signs; certificates are being renewed, and then the old CA is trusted no more. Waits for 2 of 5. Ends at the latest 2026-10-08 13:01:00.000 UTC, when no certificate of the old CA is valid any more.

KIND       ID              NAME         SIGNED BY                 CERTIFICATE ENDS             WAITED FOR BECAUSE
host       h7d2k9s4f1g6j3  gpu-01�[31m  03b1c8d2e4f5              2026-10-03 12:00:00.000 UTC  its certificate is not of the new CA yet
host       j7d2k9s4f1g6j3  gpu-02       -                         -                            its certificate is not of the new CA yet
host       k7d2k9s4f1g6j3  gpu-03       a CA that is not trusted  2026-10-05 12:00:00.000 UTC  -
scheduler  member00000001  sched-1      9f2c4b7d1e6a              2026-10-31 12:00:00.000 UTC  -
and 1 more
`}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestTheCAIsReplacedThroughTheRealFace(t *testing.T) {
	s := newSite(t)
	if out := s.good("raft ca show"); !strings.Contains(out, "signs") || strings.Contains(out, "Waits for") {
		t.Errorf("%s", out)
	}
	s.bad(exitUsage, "raft ca finish --yes")
	s.plane.SetSilent(plane.Follower, true)
	s.bad(exitUsage, "raft ca rotate --yes")
	s.plane.SetSilent(plane.Follower, false)
	s.good("raft ca rotate --yes")
	s.bad(exitUsage, "raft ca rotate --yes")
	if out := s.good("raft ca show"); !strings.Contains(out, "next") || !strings.Contains(out, "being made known") {
		t.Errorf("%s", out)
	}
	s.good("raft ca finish --yes")
	if out := s.good("raft ca show"); !strings.Contains(out, "retires") || !strings.Contains(out, "Ends at the latest") {
		t.Errorf("%s", out)
	}
	s.good("raft ca finish --yes")
	if out := s.good("raft ca show"); strings.Contains(out, "retires") {
		t.Errorf("%s", out)
	}
}
