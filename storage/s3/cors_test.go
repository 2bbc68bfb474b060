package s3

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// TestOnlyPagesOfTheConsoleReadAnswers asks as browsers do for pages of several origins.
func TestOnlyPagesOfTheConsoleReadAnswers(t *testing.T) {
	const ours = "https://api.test"
	for name, row := range map[string]struct {
		origins []string
		origin  string
		method  string
		asks    string // Access-Control-Request-Method
		allowed bool
		status  int
	}{
		"a request of the console":    {[]string{ours}, ours, "GET", "", true, http.StatusForbidden}, // it is not signed
		"the console asks before":     {[]string{ours}, ours, "OPTIONS", "PUT", true, http.StatusNoContent},
		"another page asks before":    {[]string{ours}, "https://evil.test", "OPTIONS", "PUT", false, http.StatusForbidden},
		"another page":                {[]string{ours}, "https://evil.test", "GET", "", false, http.StatusForbidden},
		"of no origin":                {[]string{ours}, "null", "GET", "", false, http.StatusForbidden},
		"without an origin":           {[]string{ours}, "", "GET", "", false, http.StatusForbidden},
		"no console is known":         {nil, ours, "OPTIONS", "PUT", false, http.StatusForbidden},
		"an origin that begins alike": {[]string{ours}, ours + ".evil.test", "OPTIONS", "PUT", false, http.StatusForbidden},
	} {
		h := New(Config{Region: "here", Origins: row.origins})
		r := httptest.NewRequest(row.method, "https://s3.test/volume/key", nil)
		if row.origin != "" {
			r.Header.Set("Origin", row.origin)
		}
		if row.asks != "" {
			r.Header.Set("Access-Control-Request-Method", row.asks)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		want := ""
		if row.allowed {
			want = row.origin
		}
		head := w.Result().Header
		if got := head.Get("Access-Control-Allow-Origin"); got != want || w.Code != row.status || head.Get("Access-Control-Allow-Credentials") != "" ||
			(head.Get("Vary") == "Origin") != (row.origins != nil) {
			t.Errorf("%s: %d, allowed %q, %v", name, w.Code, got, head)
		}
	}
}
