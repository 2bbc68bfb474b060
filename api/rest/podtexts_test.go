package rest

import (
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"gantry/fleet"
)

var listedAt = time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)

// fillAny sets all of v to something; equal seeds give equal values.
func fillAny(rng *rand.Rand, v reflect.Value) {
	if v.Type() == reflect.TypeFor[time.Time]() {
		v.Set(reflect.ValueOf(listedAt.Add(-time.Duration(rng.IntN(1e6)) * time.Second)))
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fillAny(rng, v.Elem())
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Field(i).CanSet() {
				fillAny(rng, v.Field(i))
			}
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1+rng.IntN(3), 3))
		for i := range v.Len() {
			fillAny(rng, v.Index(i))
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fillAny(rng, key)
		fillAny(rng, value)
		v.SetMapIndex(key, value)
	case reflect.String:
		v.SetString(fmt.Sprintf("<%d>&\"", rng.IntN(1e6)))
	case reflect.Bool:
		v.SetBool(rng.IntN(2) == 0)
	case reflect.Int, reflect.Int64, reflect.Int32, reflect.Int8:
		v.SetInt(int64(rng.IntN(100)))
	case reflect.Uint, reflect.Uint64, reflect.Uint32, reflect.Uint8, reflect.Uint16:
		v.SetUint(uint64(rng.IntN(100)))
	}
}

// anyPod is a view with something everywhere.
func anyPod(rng *rand.Rand) *fleet.PodView {
	v := &fleet.PodView{}
	fillAny(rng, reflect.ValueOf(v).Elem())
	v.Pod.ID, v.ProxyURL, v.Unreachable = "k3n8w0zq5r7d2a", "https://proxy.example.com:"+strconv.Itoa(rng.IntN(1000)), false
	statuses := fleet.PodStatuses()
	v.Pod.Status = statuses[rng.IntN(len(statuses))]
	v.Pod.Owner.Kind = fleet.OwnerCluster
	return v
}

// changed returns views that differ from v in one field each, which other has: of the view, of the record, of what was asked for, and of
// what is live. Records, and what is live, are new ones then, as those of the state and of hosts are.
func changed(v, other *fleet.PodView) (out []*fleet.PodView, names []string) {
	each := func(name string, of func(*fleet.PodView) reflect.Value) {
		for i := range of(v).NumField() {
			if !of(v).Field(i).CanSet() {
				continue
			}
			next := *v
			if strings.HasPrefix(name, "Pod") {
				pod := *v.Pod
				next.Pod = &pod
			} else if name != "" {
				live := *v.Live
				next.Live = &live
			}
			of(&next).Field(i).Set(of(other).Field(i))
			if next.Pod != v.Pod {
				next.Pod.ID = v.Pod.ID
			}
			out, names = append(out, &next), append(names, name+of(v).Type().Field(i).Name)
		}
	}
	each("", func(v *fleet.PodView) reflect.Value { return reflect.ValueOf(v).Elem() })
	each("Pod.", func(v *fleet.PodView) reflect.Value { return reflect.ValueOf(v.Pod).Elem() })
	each("Pod.Spec.", func(v *fleet.PodView) reflect.Value { return reflect.ValueOf(&v.Pod.Spec).Elem() })
	each("Live.", func(v *fleet.PodView) reflect.Value { return reflect.ValueOf(v.Live).Elem() })
	still := *v
	still.Live = nil
	return append(out, &still), append(names, "nothing heard")
}

// TestKeptTextsAreTheRecords: whatever of a pod changes, and whenever it is listed, what is kept of it is not shown in place of what it is.
func TestKeptTextsAreTheRecords(t *testing.T) {
	c := newPodTexts(podTextsMost, podTextsShare)
	check := func(name string, v *fleet.PodView, now time.Time) {
		t.Helper()
		want, err := appendPod(nil, v, now)
		if err != nil {
			t.Fatal(err)
		}
		got, err := c.list(nil, "acme", []fleet.PodView{*v}, 1, now)
		if err != nil || string(got) != string(want) {
			t.Errorf("%s, %s: %v\n%s, want\n%s", name, v.Pod.Status, err, got, want)
		}
	}
	empty := anyPod(rand.New(rand.NewPCG(1, 1)))
	empty.Pod.Status, empty.Live = fleet.StatusStarting, &fleet.Live{}
	silent := *empty
	silent.Live = nil
	check("an empty report", empty, listedAt)
	check("no report", &silent, listedAt)
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 1))
		v, other := anyPod(rng), anyPod(rng)
		other.Unreachable = true
		others, names := changed(v, other)
		for i, next := range others {
			check("before "+names[i], v, listedAt)
			check("after "+names[i], next, listedAt)
			check("later than "+names[i], next, listedAt.Add(time.Hour))
		}
	}
}

// TestTextsAreMadeOncePerVersion: neither time nor gauges make a record's text anew.
func TestTextsAreMadeOncePerVersion(t *testing.T) {
	for _, status := range fleet.PodStatuses() {
		c, v := newPodTexts(podTextsMost, podTextsShare), anyPod(rand.New(rand.NewPCG(1, 1)))
		v.Pod.Status = status
		list := func(now time.Time) *podText {
			if _, err := c.list(nil, "acme", []fleet.PodView{*v}, 1, now); err != nil {
				t.Fatal(err)
			}
			return c.of["acme"].texts[v.Pod.ID]
		}
		first := list(listedAt)
		live := *v.Live
		live.CPUPercent, live.At = live.CPUPercent+1, listedAt
		v.Live = &live
		if list(listedAt.Add(time.Hour)) != first {
			t.Errorf("%s: encoded again", status)
		}
		pod := *v.Pod
		if v.Pod = &pod; list(listedAt) == first {
			t.Errorf("%s: another record has the old text", status)
		}
	}
}

// TestTextsThatLookLikeGauges: what a user wrote takes no gauge's place, and is not kept.
func TestTextsThatLookLikeGauges(t *testing.T) {
	c, v := newPodTexts(podTextsMost, podTextsShare), anyPod(rand.New(rand.NewPCG(1, 1)))
	v.Pod.Status, v.Pod.Spec.Env = fleet.StatusRunning, map[string]string{"A": strconv.Itoa(math.MinInt64)}
	want, err := appendPod(nil, v, listedAt)
	if err != nil {
		t.Fatal(err)
	}
	got, err := c.list(nil, "acme", []fleet.PodView{*v}, 1, listedAt)
	if err != nil || string(got) != string(want) || c.of["acme"] != nil {
		t.Errorf("%v %s, want %s", err, got, want)
	}
}

// TestKeptTextsAreBounded: by account, in all, and to pods that are there.
func TestKeptTextsAreBounded(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	c := newPodTexts(100<<10, 25<<10)
	list := func(account fleet.AccountID, n int, name string) {
		t.Helper()
		views := make([]fleet.PodView, n)
		for i := range views {
			v := anyPod(rng)
			v.Pod.ID = fleet.PodID(fmt.Sprintf("%s-%d", name, i))
			views[i] = *v
		}
		if _, err := c.list(nil, account, views, n, listedAt); err != nil {
			t.Fatal(err)
		}
		sum := 0
		for id, s := range c.of {
			size := 0
			for _, text := range s.texts {
				size += text.size
			}
			if size != s.size || size > c.share {
				t.Errorf("%s: %d bytes, counted as %d, of %d", id, size, s.size, c.share)
			}
			sum += size
		}
		if sum != c.size || sum > c.most {
			t.Errorf("%d bytes, counted as %d, of %d", sum, c.size, c.most)
		}
	}
	for round := range 3 {
		for i := range 10 {
			list(fleet.AccountID(fmt.Sprintf("a%d", i)), 20, fmt.Sprintf("r%d", round))
			list("often", 1, "p")
		}
	}
	if len(c.of) < 3 || len(c.of) > 8 || c.of["often"] == nil || c.of["a9"] == nil || c.of["a0"] != nil {
		t.Errorf("kept: %v", reflect.ValueOf(c.of).MapKeys())
	}
	roomy := newPodTexts(podTextsMost, podTextsShare)
	c = roomy
	for round := range 10 {
		list("acme", 5, fmt.Sprintf("r%d", round))
	}
	if n := len(c.of["acme"].texts); n > 10 {
		t.Errorf("%d texts of 5 pods", n)
	}
}
