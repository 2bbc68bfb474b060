package inventory

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"gantry/fleet"
)

// ConditionNoUserns says that pods have no user namespaces, and what the host lacks.
func ConditionNoUserns(lacks error) fleet.Condition {
	const most = 300
	text := []rune("pods have no user namespaces, root in a pod is root of the host: " + lacks.Error())
	return fleet.Condition{Code: "userns_unavailable", Text: string(text[:min(len(text), most)])}
}

// isolationConditions tells what isolates pods less than it should, by the runtime's version in words and
// by whether pods have user namespaces. A class other than "" does not use runc.
func isolationConditions(runtime, class string, userns bool) []fleet.Condition {
	_, runc, named := strings.Cut(runtime, ", runc ")
	if class != "" || !named {
		return nil
	}
	v, ok := parseRunc(runc)
	if v.safe() { // what is no version is not
		return nil
	}
	text := "runc " + runc + " is older than 1.2.8, 1.3.3 and 1.4.0-rc.3, which close ways out of containers (CVE-2025-31133, CVE-2025-52565, CVE-2025-52881)"
	if !ok {
		text = fmt.Sprintf("the version %.40q of runc cannot be compared with 1.2.8, which closes ways out of containers", runc)
	}
	if userns {
		text += "; the pods' user namespaces bound what that gives"
	}
	return []fleet.Condition{{Code: "runc_old", Text: text, Severe: !userns}}
}

// runcVersion is a version of runc; rc is 0 for one that is no candidate.
type runcVersion struct{ major, minor, patch, rc int }

// Vendors add to it: "1.1.5+ds1", "1.3.3-0ubuntu1~24.04.2", "1.2.6-1.el9".
var runcForm = regexp.MustCompile(`^v?(\d{1,4})\.(\d{1,4})\.(\d{1,4})(?:[-~.]?rc\.?(\d{1,4}))?(?:$|[-+~. ])`)

func parseRunc(text string) (runcVersion, bool) {
	m := runcForm.FindStringSubmatch(strings.TrimSpace(text))
	if m == nil {
		return runcVersion{}, false
	}
	n := make([]int, len(m))
	for i, digits := range m[1:] {
		n[i], _ = strconv.Atoi(digits) // at most four digits, or none
	}
	return runcVersion{n[0], n[1], n[2], n[3]}, true
}

func (v runcVersion) compare(o runcVersion) int {
	last := func(rc int) int { // the release comes after its candidates
		if rc == 0 {
			return 1 << 16
		}
		return rc
	}
	return cmp.Or(cmp.Compare(v.major, o.major), cmp.Compare(v.minor, o.minor), cmp.Compare(v.patch, o.patch), cmp.Compare(last(v.rc), last(o.rc)))
}

// safe reports whether the version has what its line got in November 2025.
func (v runcVersion) safe() bool {
	floors := []runcVersion{{1, 2, 8, 0}, {1, 3, 3, 0}, {1, 4, 0, 3}}
	i := slices.IndexFunc(floors, func(f runcVersion) bool { return f.major == v.major && f.minor == v.minor })
	if i < 0 {
		return v.compare(floors[len(floors)-1]) > 0
	}
	return v.compare(floors[i]) >= 0
}
