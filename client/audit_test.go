package client

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

func TestAuditIsReadLineByLine(t *testing.T) {
	body := "{\"operation\":\"a\"}\n{\"operation\":\"b\"}\n"
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if want := "/admin/v1/audit?accountId=acc&format=jsonl&from=2026-10-01T12%3A00%3A00Z&limit=5&object=o&operation=p"; r.URL.RequestURI() != want {
			t.Error(r.URL.RequestURI())
		}
		_, _ = io.WriteString(w, body)
	})
	q := AuditQuery{Operator: true, Account: "acc", From: time.Date(2026, 10, 1, 12, 0, 0, 0, time.UTC), Limit: 5, Object: "o", Operation: "p"}
	stop := errors.New("enough")
	for last, want := range map[string]error{"": nil, "b": stop} {
		var got []string
		err := c.Audit(t.Context(), q, func(raw []byte, l AuditLine) error {
			if got = append(got, l.Operation); string(raw) != fmt.Sprintf("{\"operation\":%q}", l.Operation) {
				t.Errorf("%s", raw)
			}
			if l.Operation == last {
				return stop
			}
			return nil
		})
		if !errors.Is(err, want) || strings.Join(got, "") != "ab" {
			t.Errorf("%v %v", got, err)
		}
	}
	for _, body = range []string{"{\"operation\":\"a\"}\n{\"oper", "nonsense\n", strings.Repeat("x", 10_000)} {
		if err := c.Audit(t.Context(), q, func([]byte, AuditLine) error { return nil }); err == nil {
			t.Errorf("%.20q was taken", body)
		}
	}
}
