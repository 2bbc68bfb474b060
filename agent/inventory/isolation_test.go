package inventory

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestRuncFloor(t *testing.T) {
	for version, want := range map[string]bool{
		"1.1.5": false, "1.1.5+ds1": false, "1.1.5+ds1-1+deb12u1": false, "1.1.99": false, "1.0.0~rc93+ds1": false, "1.0.0-rc95": false, "0.1.1": false,
		"1.2.7": false, "1.2.8": true, "v1.2.8": true, "1.2.8-rc.1": false, "1.2.8+ds1": true, "1.2.10": true, "1.2.6-1.el9": false, "1.2.9-1.el9": true,
		"1.3.0-rc.1": false, "1.3.0": false, "1.3.2+dev": false, "1.3.3": true, "1.3.3-0ubuntu1~24.04.2": true, "1.3.3~rc1": false, "1.3.4": true,
		"1.4.0-rc.2": false, "1.4.0-rc.2+dev": false, "1.4.0-rc.3": true, "1.4.0-rc.10": true, "1.4.0": true, "1.4.0+dev": true, "1.4.1": true,
		"1.5.0-rc.1": true, "1.10.0": true, "2.0.0": true,
	} {
		v, ok := parseRunc(version)
		if !ok || v.safe() != want {
			t.Errorf("%s: %+v, %v", version, v, ok)
		}
		if got := len(isolationConditions("containerd 1.6.20, runc "+version, "", true)) == 0; got != want {
			t.Errorf("%s: silent %v", version, got)
		}
	}
	for _, version := range []string{"", "unknown", "1.2", "1.2.x", "1.2.8x", "12345.1.1", "1.99999.1", "crun 1.2.8", "-1.2.8"} {
		if v, ok := parseRunc(version); ok {
			t.Errorf("%q is %+v", version, v)
		}
	}
}

func FuzzParseRunc(f *testing.F) {
	f.Add("1.3.0-rc.1")
	f.Fuzz(func(t *testing.T, text string) {
		v, ok := parseRunc(text)
		if min(v.major, v.minor, v.patch, v.rc) < 0 || !ok && v != (runcVersion{}) {
			t.Errorf("%q: %+v", text, v)
		}
		for _, n := range isolationConditions("containerd 2, runc "+text, "", false) {
			if !utf8.ValidString(n.Text) && utf8.ValidString(text) || len(n.Text) > 400 && len(text) < 100 {
				t.Errorf("%q", n.Text)
			}
		}
	})
}

func TestIsolationConditions(t *testing.T) {
	for _, tc := range []struct {
		runtime, class string
		userns         bool
		want           string
		severe         bool
	}{
		{"containerd 1.6.20, runc 1.1.5", "", true, "runc 1.1.5 is older than 1.2.8", false},
		{"containerd 1.6.20, runc 1.1.5", "", false, "runc 1.1.5 is older than 1.2.8", true},
		{"containerd 2.1.4, runc unknown", "", true, `the version "unknown" of runc cannot be compared`, false},
		{"containerd 2.1.4, runc unknown", "", false, `the version "unknown" of runc cannot be compared`, true},
		{"containerd 2.1.4, runc ", "", false, `the version "" of runc`, true},
		{"containerd 2.1.4, runc 1.3.3", "", false, "", false},
		{"containerd 1.6.20, runc 1.1.5", "gvisor", false, "", false},
		{"containerd 1.6.20, runc 1.1.5", "kata", false, "", false},
		{"", "", false, "", false}, // the daemon did not answer yet
		{"pretended", "", false, "", false},
	} {
		got := isolationConditions(tc.runtime, tc.class, tc.userns)
		switch {
		case tc.want == "":
			if len(got) > 0 {
				t.Errorf("%+v: %v", tc, got)
			}
		case len(got) != 1 || got[0].Code != "runc_old" || !strings.Contains(got[0].Text, tc.want) || got[0].Severe != tc.severe ||
			strings.Contains(got[0].Text, "user namespaces bound") != tc.userns:
			t.Errorf("%+v: %v", tc, got)
		}
	}
	n := ConditionNoUserns(errors.New("the kernel says no " + strings.Repeat("ü", 500)))
	if n.Code != "userns_unavailable" || n.Severe || !strings.Contains(n.Text, "the kernel says no") || !utf8.ValidString(n.Text) || len([]rune(n.Text)) != 300 {
		t.Errorf("%+v", n)
	}
}
