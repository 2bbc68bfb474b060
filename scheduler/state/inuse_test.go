package state

import (
	"errors"
	"slices"
	"testing"

	"gantry/fleet"
)

func TestARefusalNamesTheUsers(t *testing.T) {
	pods := uses{thing: "pod"}
	for i := range 12 {
		pods.add(string(rune('a'+i)), map[bool]string{true: "web"}[i == 0])
	}
	err := inUse("the secret", uses{n: 1, thing: "template"}, pods)
	var e *fleet.Error
	if !errors.As(err, &e) || e.Code != fleet.CodeInUse || e.Msg != "the secret is in use: 1 template and 12 pods have it" {
		t.Fatalf("%+v", err)
	}
	if len(e.Details) != maxNamed || !slices.Equal(e.Details[:2], []string{"pod a (web)", "pod b"}) {
		t.Errorf("%q", e.Details)
	}
	if err := inUse("the secret", uses{thing: "pod"}); err != nil {
		t.Error(err)
	}
}
