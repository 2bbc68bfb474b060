package relay

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// TestAHeaderThatEndsTheStreamWaits for that end, and no other.
func TestAHeaderThatEndsTheStreamWaits(t *testing.T) {
	for name, want := range map[string]bool{"Grpc-Status": false, "Grpc-Encoding": true} {
		rec := httptest.NewRecorder()
		w := &Writer{ResponseWriter: rec, Control: http.NewResponseController(rec)}
		w.Header().Set(name, "5")
		w.WriteHeader(http.StatusOK)
		if err := http.NewResponseController(w).Flush(); err != nil || rec.Flushed != want {
			t.Errorf("%s: flushed %t, %v", name, rec.Flushed, err)
		}
	}
}
