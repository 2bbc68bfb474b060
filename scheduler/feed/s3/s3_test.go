package s3

import (
	"encoding/hex"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"gantry/fleet"
	"gantry/internal/agentrpc"
)

func TestOnlyWhatAnAccessKeyCanBeIsLookedUp(t *testing.T) {
	now := time.Date(2026, 10, 5, 12, 0, 0, 0, time.UTC)
	day := func(at time.Time) string { return at.Format(dateForm) }
	for name, c := range map[string]struct {
		in   *agentrpc.S3AccessRequest
		want codes.Code
		says string
	}{
		"all is well":        {&agentrpc.S3AccessRequest{Date: day(now), AccessKey: strings.Repeat("k", maxAccess), Region: strings.Repeat("r", maxRegion)}, codes.OK, ""},
		"no date":            {&agentrpc.S3AccessRequest{AccessKey: "k"}, codes.InvalidArgument, "the date"},
		"a date of long ago": {&agentrpc.S3AccessRequest{Date: day(now.Add(-dateSlack - 48*time.Hour)), AccessKey: "k"}, codes.InvalidArgument, "the date"},
		"a date to come":     {&agentrpc.S3AccessRequest{Date: day(now.Add(dateSlack + 48*time.Hour)), AccessKey: "k"}, codes.InvalidArgument, "the date"},
		"no key":             {&agentrpc.S3AccessRequest{Date: day(now)}, status.Code(errNoKey), status.Convert(errNoKey).Message()},
		"a long key":         {&agentrpc.S3AccessRequest{Date: day(now), AccessKey: strings.Repeat("k", maxAccess+1)}, status.Code(errNoKey), status.Convert(errNoKey).Message()},
		"a long region":      {&agentrpc.S3AccessRequest{Date: day(now), AccessKey: "k", Region: strings.Repeat("r", maxRegion+1)}, codes.InvalidArgument, "the region is too long"},
	} {
		if err := check(c.in, now); status.Code(err) != c.want || !strings.Contains(status.Convert(err).Message(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAHostsRequestsForKeysAreBounded(t *testing.T) {
	var r rates
	now := time.Unix(1000, 0)
	take := func(id fleet.HostID, at time.Time) (n int) {
		for n < 2*burst && r.allow(id, at) {
			n++
		}
		return n
	}
	if n := take("h1", now); n != burst {
		t.Errorf("%d at once", n)
	}
	if n := take("h2", now); n != burst {
		t.Errorf("%d of another host", n)
	}
	if n := take("h1", now.Add(-time.Hour)); n != 0 {
		t.Errorf("%d when the clock goes back", n)
	}
	if n := take("h1", now.Add(time.Second)); n != perSecond {
		t.Errorf("%d a second later", n)
	}
	if n := take("h1", now.Add(24*time.Hour)); n != burst {
		t.Errorf("%d a day later", n)
	}
}

// The example is of AWS's documentation of Signature Version 4.
func TestSigningKey(t *testing.T) {
	const want = "dbb893acc010964918f1fd433add87c70e8b0db6be30c1fbeafefa5ec6ba8378"
	if got := hex.EncodeToString(signingKey("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "20130524", "us-east-1")); got != want {
		t.Errorf("got %s", got)
	}
}

func TestAHostAsksForSoManyKeysOnly(t *testing.T) {
	var r rates
	now := time.Now()
	taken := 0
	for r.allow("a", now) {
		taken++
	}
	if taken != burst || !r.allow("b", now) || r.allow("a", now.Add(-time.Hour)) {
		t.Errorf("took %d at once", taken)
	}
	for range perSecond {
		if !r.allow("a", now.Add(time.Second)) {
			t.Fatal("it gets no more after a second")
		}
	}
	if r.allow("a", now.Add(time.Second)) {
		t.Error("it gets more than its share")
	}
}

// TestKeysAreOfTheseDays: two days either side, in whatever zone the day began.
func TestKeysAreOfTheseDays(t *testing.T) {
	day := time.Date(2026, 10, 5, 0, 0, 0, 0, time.UTC)
	for off, ok := range map[time.Duration]bool{-dateSlack: true, -dateSlack - 1: false, dateSlack + 24*time.Hour: true, dateSlack + 24*time.Hour + 1: false} {
		if err := check(&agentrpc.S3AccessRequest{Date: day.Format(dateForm), AccessKey: "k"}, day.Add(off)); (err == nil) != ok {
			t.Errorf("%v after the day began: %v", off, err)
		}
	}
}
