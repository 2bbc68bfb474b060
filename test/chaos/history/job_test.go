package history

import (
	"strings"
	"testing"

	"github.com/anishathalye/porcupine"
)

// TestJobEndsOnce: calls one after the other, of which a star says that they cancel.
func TestJobEndsOnce(t *testing.T) {
	for calls, want := range map[string]bool{
		"IN_QUEUE IN_PROGRESS IN_QUEUE COMPLETED COMPLETED": true,
		"IN_QUEUE CANCELLED* CANCELLED":                     true,
		"COMPLETED COMPLETED* COMPLETED":                    true,
		"IN_QUEUE * CANCELLED":                              true,
		"COMPLETED * COMPLETED":                             true,
		"COMPLETED IN_PROGRESS":                             false,
		"COMPLETED FAILED":                                  false,
		"COMPLETED CANCELLED*":                              false,
		"CANCELLED* COMPLETED":                              false,
		"IN_PROGRESS*":                                      false,
	} {
		var ops []porcupine.Operation
		for i, status := range strings.Fields(calls) {
			text, cancels := strings.CutSuffix(status, "*")
			ops = append(ops, porcupine.Operation{Input: cancels, Output: text, Call: int64(2 * i), Return: int64(2*i + 1)})
		}
		if got := porcupine.CheckOperations(Job, ops); got != want {
			t.Errorf("%s: %v, want %v", calls, got, want)
		}
	}
}
