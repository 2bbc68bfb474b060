package plane

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"gantry/fleet"
	"gantry/scheduler/state"
)

// names gives what was drawn at random a name that is the same in every run, in the order in which the
// state machine took it: <pod-1>, <key-1>.
type names struct {
	mu    *sync.Mutex
	of    map[string]string
	count map[string]int
}

func newNames() names {
	return names{mu: &sync.Mutex{}, of: map[string]string{}, count: map[string]int{}}
}

// learn names what a command made.
func (n names) learn(cmd state.Command) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch c := cmd.(type) {
	case state.CreatePods:
		for i := range c.Pods {
			n.add("pod", string(c.Pods[i].Pod.ID))
			n.ports(c.Pods[i].Pod.Mappings)
		}
	case state.UpdatePod:
		n.ports(c.Mappings)
	case state.ActPod:
		if c.Bind != nil {
			n.ports(c.Bind.Mappings)
		}
	case state.PutKey:
		n.add("key", string(c.Key.ID))
		n.add("hint", c.Key.Hint)
	case state.PutPerson:
		n.add("person", string(c.Person.ID))
	case state.PutAccount:
		n.add("account", string(c.Account.ID))
	case state.Put[fleet.Template]:
		n.add("template", string(c.Record.ID))
	case state.Put[fleet.Endpoint]:
		n.add("endpoint", string(c.Record.ID))
		for _, r := range c.Record.Releases {
			n.add("release", r.ID)
		}
	case state.CreateCluster:
		n.add("cluster", string(c.Cluster.ID))
		for i := range c.Pods {
			n.add("pod", string(c.Pods[i].Pod.ID))
			n.ports(c.Pods[i].Pod.Mappings)
		}
	case state.Put[fleet.Registry]:
		n.add("registry", string(c.Record.ID))
	case state.CreateVolume:
		n.add("volume", string(c.Volume.ID))
	case state.Put[fleet.S3Key]:
		n.add("s3-key", c.Record.ID)
	}
}

func (n names) ports(mappings []fleet.PortMapping) {
	for _, m := range mappings {
		n.add("port", strconv.Itoa(m.Public))
	}
}

// fixed is the form of the identifiers and hints that New gives.
var fixed = regexp.MustCompile(`^(acc|key|host|vol)[0-9]{10,11}$|^gk_(user|reader|expire|other0|operat)`)

func (n names) add(kind, id string) {
	if id == "" || n.of[id] != "" || fixed.MatchString(id) {
		return
	}
	n.count[kind]++
	n.of[id] = fmt.Sprintf("<%s-%d>", kind, n.count[kind])
}

// randomText are texts that are recognised by their form.
var randomText = []struct {
	form *regexp.Regexp
	name string
}{
	{regexp.MustCompile(`"gk_[0-9A-Za-z]{43}"`), `"<key-text>"`},
	{regexp.MustCompile(`"rps_[0-9A-Za-z]{43}"`), `"<s3-secret>"`},
	{regexp.MustCompile(`"gj1_[0-9A-Za-z_-]+"`), `"<token>"`},
	{regexp.MustCompile(`gantry-link=[0-9]+\.[0-9A-Za-z_-]{43}`), `gantry-link=<link>`},
	{regexp.MustCompile(`(Credential=link\.[a-z0-9]+\.[a-z0-9]+\.[rw]\.[a-z0-9]+\.)[a-z2-7]{16}([^ "]*X-Amz-Signature=)[0-9a-f]{64}`), `$1<mac>$2<signature>`},
	{regexp.MustCompile(`"http://127\.0\.0\.1:[0-9]+/v2/`), `"http://<address>/v2/`},
	{regexp.MustCompile(`("password": ?)"[2-7A-Z]{24}"`), `$1"<password>"`},
	{regexp.MustCompile(`("JUPYTER_PASSWORD": ?)"[^"]{24}"`), `$1"<password>"`},
}

// Named replaces in text what was drawn at random by names.
func (p *Plane) Named(text string) string {
	for _, r := range randomText {
		text = r.form.ReplaceAllString(text, r.name)
	}
	p.names.mu.Lock()
	defer p.names.mu.Unlock()
	for _, id := range p.names.ids() {
		text = strings.ReplaceAll(text, id, p.names.of[id])
	}
	return text
}

// ids lists what has a name, the longest first, so that none is taken for a part of another.
func (n names) ids() []string {
	out := make([]string, 0, len(n.of))
	for id := range n.of {
		out = append(out, id)
	}
	slices.SortFunc(out, func(a, b string) int { return cmp.Or(len(b)-len(a), cmp.Compare(a, b)) })
	return out
}

// Meant replaces the names that are in text by what they stand for; what is not known stays.
func (p *Plane) Meant(text string) string {
	p.names.mu.Lock()
	defer p.names.mu.Unlock()
	for id, name := range p.names.of {
		text = strings.ReplaceAll(text, name, id)
	}
	return text
}
