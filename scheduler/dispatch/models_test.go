package dispatch

import (
	"log/slog"
	"slices"
	"strings"
	"testing"

	"gantry/fleet"
	"gantry/internal/agentrpc"
)

// TestModelsGoWithPodsThatAreToRun, with the address of the hub; what a host says that it has is bounded as images are.
func TestModelsGoWithPodsThatAreToRun(t *testing.T) {
	models := []string{"https://huggingface.co/o/n"}
	x := &session{server: New(Config{Log: slog.New(slog.DiscardHandler), ModelHub: "https://hub.example"})}
	for goal, want := range map[fleet.Goal]string{fleet.GoalRun: "https://hub.example", fleet.GoalStop: "", fleet.GoalGone: ""} {
		got := x.order(&fleet.Pod{ID: "p", Goal: goal, Spec: fleet.PodSpec{Models: models}}, nil)
		if got.GetModelHub() != want || slices.Equal(got.GetModels(), models) != (want != "") {
			t.Errorf("%s: %v from %q", goal, got.GetModels(), got.GetModelHub())
		}
	}
	if got := x.order(&fleet.Pod{ID: "p", Goal: fleet.GoalRun}, nil); got.GetModelHub() != "" {
		t.Errorf("without models: %q", got.GetModelHub())
	}
	many := append(slices.Repeat(models, 300), strings.Repeat("x", maxImage+1))
	if got := decodeInventory(&agentrpc.Inventory{Models: many}).Models; len(got) != maxImages || got[0] != models[0] {
		t.Errorf("%d models are kept", len(got))
	}
}
