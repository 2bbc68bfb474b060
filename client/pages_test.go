package client

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"

	"gantry/api/v2"
)

// A list that is too long for one answer is read in pages, and shown as one list.
func TestALongListIsReadInPages(t *testing.T) {
	const pods = 4100
	asked := 0
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked++
		most, _ := strconv.Atoi(r.URL.Query().Get("limit"))
		from, _ := strconv.Atoi(r.URL.Query().Get("cursor"))
		if r.URL.Query().Get("name") != "x" {
			t.Errorf("asked for %s", r.URL)
		}
		if most == 0 {
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(http.StatusBadRequest)
			_, _ = fmt.Fprint(w, `{"status":400,"code":"too_many"}`)
			return
		}
		page := v2.PodList{Pods: []v2.Pod{}}
		to := min(pods, from+most)
		for i := from; i < to; i++ {
			page.Pods = append(page.Pods, v2.Pod{ID: fmt.Sprint("p", i)})
		}
		out := map[string]any{"pods": page.Pods}
		if to < pods {
			out["next"] = strconv.Itoa(to)
		}
		_ = json.NewEncoder(w).Encode(out)
	}))
	defer srv.Close()
	c, err := New(srv.URL, "key", "test")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	all, err := c.PodsWhere(t.Context(), PodFilter{Name: "x"})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(all.Value.Pods); n != pods || all.Value.Pods[pods-1].ID != fmt.Sprint("p", pods-1) || asked != 4 {
		t.Errorf("%d pods in %d answers", n, asked)
	}
	var raw struct {
		Pods []json.RawMessage `json:"pods"`
	}
	if err := json.Unmarshal(all.Raw, &raw); err != nil || len(raw.Pods) != pods {
		t.Errorf("as text %d pods, %v", len(raw.Pods), err)
	}
}

func TestListsAreJoined(t *testing.T) {
	for _, c := range [][3]string{
		{`[]`, `[]`, `[]`}, {`[1]`, `[]`, `[1]`}, {`[]`, `[1]`, `[1]`}, {` [ 1 ] `, `[2,3]`, `[ 1,2,3]`}, {``, `[1]`, `[1]`}, {`1`, `2`, `2`},
	} {
		if got := string(joinedLists(json.RawMessage(c[0]), json.RawMessage(c[1]))); got != c[2] {
			t.Errorf("%s and %s are %s", c[0], c[1], got)
		}
	}
}
