package rest

import (
	"cmp"
	"fmt"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"gantry/api/admin"
	"gantry/api/v2"

	"gantry/fleet"
)

// podsBut makes the list of n pods of which some were deleted; of two each the age is the same.
func podsBut(n int, gone ...string) *v2.PodList {
	out := &v2.PodList{}
	began := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for i := range n {
		id := fmt.Sprintf("pod%03d", i*37%n) // not in the order of their ages
		if !slices.Contains(gone, id) {
			out.Pods = append(out.Pods, v2.Pod{ID: id, CreatedAt: v2.At(began.Add(time.Duration(i/2) * time.Millisecond))})
		}
	}
	slices.SortFunc(out.Pods, func(a, b v2.Pod) int { return cmp.Or(a.CreatedAt.Compare(b.CreatedAt.Time), cmp.Compare(a.ID, b.ID)) })
	return out
}

func page(t *testing.T, all *v2.PodList, query string) ([]string, string) {
	t.Helper()
	params, err := compileParams(pageParams())
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequest("GET", "/v2/pods?"+query, nil)
	c := &call{r: r, w: httptest.NewRecorder()}
	if c.args, err = params.read(r); err != nil {
		t.Fatal(err)
	}
	field, ok := listField(reflect.TypeFor[v2.PodList]())
	if !ok {
		t.Fatal("it is no list")
	}
	if err := paged(c, reflect.ValueOf(all).Elem(), field); err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, p := range all.Pods {
		ids = append(ids, p.ID)
	}
	return ids, all.Next
}

// A list that is read in parts is the whole list, each once, also when what a cursor names is deleted meanwhile.
func TestPartsAreTheWholeList(t *testing.T) {
	var want, got []string
	for _, p := range podsBut(50).Pods {
		want = append(want, p.ID)
	}
	cursor, gone := "", []string(nil)
	for range 100 {
		ids, next := page(t, podsBut(50, gone...), "limit=7&cursor="+cursor)
		got = append(got, ids...)
		if cursor = next; next == "" {
			break
		}
		gone = append(gone, ids[len(ids)-1]) // what the cursor names
	}
	slices.Sort(want)
	if slices.Sort(got); !slices.Equal(got, want) {
		t.Errorf("in parts %v, at once %v", got, want)
	}
}

func TestALongListIsReadInParts(t *testing.T) {
	for _, c := range []struct {
		n     int
		query string
		code  fleet.Code
		shown int
		more  bool
	}{
		{mostListed, "", "", mostListed, false},
		{mostListed + 1, "", fleet.CodeTooMany, 0, false},
		{mostListed + 1, "limit=10000", "", mostListed, true},
		{mostListed + 1, "limit=3", "", 3, true},
		{3, "limit=3", "", 3, false},
		{3, "cursor=!", fleet.CodeMalformed, 0, false},
		{0, "limit=1", "", 0, false},
	} {
		all := make([]v2.Key, c.n)
		for i := range all {
			all[i].ID = fmt.Sprintf("key%06d", i)
		}
		params, err := compileParams(pageParams())
		if err != nil {
			t.Fatal(err)
		}
		r := httptest.NewRequest("GET", "/v1/keys?"+c.query, nil)
		w := httptest.NewRecorder()
		call := &call{r: r, w: w}
		if call.args, err = params.read(r); err != nil {
			t.Fatal(err)
		}
		err = paged(call, reflect.ValueOf(&all).Elem(), -1)
		link := w.Header().Get("Link")
		if fleet.CodeOf(err) != c.code || err == nil && (len(all) != c.shown || (link != "") != c.more) {
			t.Errorf("%d, %q: %v, %d shown, Link %q", c.n, c.query, err, len(all), link)
		}
		if c.more && (!strings.HasPrefix(link, "</v1/keys?cursor=") || !strings.HasSuffix(link, `; rel="next"`)) {
			t.Errorf("Link %q", link)
		}
	}
}

// Every list that a route answers can be read in parts.
func TestEveryListHasACursor(t *testing.T) {
	for _, answer := range []reflect.Type{
		reflect.TypeFor[v2.PodList](), reflect.TypeFor[v2.KeyList](), reflect.TypeFor[v2.NetworkVolumeList](), reflect.TypeFor[v2.TemplateList](),
		reflect.TypeFor[v2.RegistryList](), reflect.TypeFor[v2.SecretList](), reflect.TypeFor[admin.OperatorAccountList](), reflect.TypeFor[admin.HostList](),
		reflect.TypeFor[admin.HostPodList](), reflect.TypeFor[admin.BackendList](), reflect.TypeFor[admin.HostImagesList](), reflect.TypeFor[v2.NetworkList](),
		reflect.TypeFor[v2.GPUList](), reflect.TypeFor[v2.CPUList](), reflect.TypeFor[v2.DataCenterList](), reflect.TypeFor[admin.DataCenterEntryList](),
	} {
		field, ok := listField(answer)
		if !ok {
			t.Errorf("%s is no list", answer)
			continue
		}
		item := reflect.New(answer.Field(field).Type.Elem()).Elem()
		found := false
		for i := range item.NumField() {
			if item.Field(i).Kind() == reflect.String && !found {
				item.Field(i).SetString("x")
				found = true
			}
		}
		if f := item.FieldByName("ID"); f.IsValid() && f.Kind() == reflect.String {
			f.SetString("x")
		}
		if itemKey(item, false) != "x" {
			t.Errorf("items of %s have the key %q", answer, itemKey(item, false))
		}
	}
}
