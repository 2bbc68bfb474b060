package forward

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestBodiesAreKeptWithinABound: what is kept to send a request again may be anybody's, also before a key was looked at. Beyond the
// bound a body goes through as it comes.
func TestBodiesAreKeptWithinABound(t *testing.T) {
	const size = 1000
	f := &Forwarder{cfg: Config{Buffer: size, Buffers: 3 * size}}
	var calls []*call
	for i := range 5 {
		r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(strings.Repeat("x", size)))
		c, err := f.begin(httptest.NewRecorder(), r)
		if err != nil {
			t.Fatal(err)
		}
		if c.kept != (i < 3) || c.kept == (c.read != nil) {
			t.Errorf("body %d: kept %v", i, c.kept)
		}
		calls = append(calls, c)
	}
	f.kept.Add(-int64(len(calls[0].body)))
	c, err := f.begin(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/", strings.NewReader("x")))
	if err != nil || !c.kept {
		t.Errorf("when one has ended: %v %v", c.kept, err)
	}
}
