package orders

import (
	"strings"
	"testing"

	"gantry/fleet"
	"gantry/internal/agentrpc"
)

// Whatever the scheduler checks, an order with a model or a hub that leads elsewhere is not carried out.
func TestModelsOfAnOrderAreChecked(t *testing.T) {
	o := follower(t)
	const good = "https://huggingface.co/org/name"
	got := o.decode(&agentrpc.Assignment{PodId: "p", ModelHub: "https://hub.example", Models: []string{good, "https://huggingface.co/org/other:v1"}})
	if got.Refused != "" || got.ModelHub != "https://hub.example" || len(got.Models) != 2 || got.Models[1] != (fleet.ModelRef{Repo: "org/other", Revision: "v1"}) {
		t.Errorf("%+v", got)
	}
	if got := o.decode(&agentrpc.Assignment{PodId: "p", ModelHub: "nonsense"}); got.Refused != "" || got.ModelHub != "" {
		t.Errorf("without models: %+v", got)
	}
	for _, c := range []struct {
		hub  string
		refs []string
	}{
		{"https://hub.example", []string{"https://huggingface.co/../name"}},
		{"https://hub.example", []string{good, good + ":v1"}},
		{"https://hub.example", strings.Split(strings.TrimSuffix(strings.Repeat(good+",", 9), ","), ",")},
		{"http://hub.example", []string{good}},
		{"", []string{good}},
	} {
		if got := o.decode(&agentrpc.Assignment{PodId: "p", ModelHub: c.hub, Models: c.refs}); got.Refused == "" || len(got.Models) > 0 || got.ModelHub != "" {
			t.Errorf("%+v: %+v", c, got)
		}
	}
}
