package state

import (
	"fmt"
	"strings"
	"testing"

	"gantry/fleet"
	"gantry/scheduler/entry"
)

// TestHowFarWebhooksAre sets, replaces and removes webhooks, and notes how far their calls are.
func TestHowFarWebhooksAre(t *testing.T) {
	w := newWorld(t)
	w.must(PutAccount{fleet.Account{ID: "acme"}}, PutAccount{fleet.Account{ID: "other"}})
	hook := func(url string, kinds ...fleet.EventKind) UpdateAccount {
		return UpdateAccount{Account: "acme", Webhook: &fleet.AccountWebhook{URL: url, Kinds: kinds, Key: []byte("sealed")}}
	}
	shows := func(want string) {
		t.Helper()
		w.view(func(v *View) {
			places, done, noted := v.Webhooks()
			state := v.WebhookState("acme")
			if got := fmt.Sprint(places, done, noted, " ", state.Error); got != want {
				t.Errorf("there is %s, want %s", got, want)
			}
		})
	}
	place := func(index uint64) fleet.EventPlace { return fleet.EventPlace{Index: index, Seq: 1} }
	for _, bad := range []UpdateAccount{
		hook("https://x"), hook("https://"+strings.Repeat("x", 2048), fleet.EventPod), hook("https://x", "weather"), hook("https://x", fleet.EventHost),
	} {
		w.refused(fleet.CodeInvalid, bad)
	}
	shows("map[] 0-0-0 false ")
	set, _ := w.must(hook("https://x", fleet.EventVolume, fleet.EventPod, fleet.EventPod)).(fleet.Account)
	if got := fmt.Sprint(set.Webhook.Kinds); got != "[pod volume]" {
		t.Errorf("kinds %s", got)
	}
	began := w.s.Index()
	shows(fmt.Sprintf("map[acme:0-%d-0] 0-0-0 false ", began))
	events := 0
	w.s.Changes(fleet.EventPlace{Index: began}, 99, func(_ fleet.EventPlace, e *fleet.Event) bool { events++; return e.Account == "acme" })
	if events != 1 {
		t.Errorf("%d events are behind where the webhook begins, not that of the change itself", events)
	}
	w.must(NoteWebhooks{Done: place(began + 5), Accounts: map[fleet.AccountID]fleet.WebhookState{
		"acme": {Place: place(began + 9), Error: strings.Repeat("ä", 200)}, "other": {Place: place(began + 9)}, "none": {},
	}})
	long := strings.Repeat("ä", 128)
	shows(fmt.Sprintf("map[acme:0-%d-1] 0-%d-1 true %s", began+9, began+5, long))
	w.must(NoteWebhooks{Done: place(1), Accounts: map[fleet.AccountID]fleet.WebhookState{"acme": {Place: place(2)}}})
	shows(fmt.Sprintf("map[acme:0-%d-1] 0-%d-1 true %s", began+9, began+5, long))
	w.must(hook("https://y", fleet.EventPod)) // how far the calls are stays
	shows(fmt.Sprintf("map[acme:0-%d-1] 0-%d-1 true %s", began+9, began+5, long))
	w.must(NoteWebhooks{Done: place(began + 99)})
	shows(fmt.Sprintf("map[acme:0-%d-1] 0-%d-1 true %s", began+99, began+99, long))
	at := w.s.EndOfChanges()
	w.must(NoteWebhooks{Done: place(began + 100)})
	w.s.Changes(at, 99, func(_ fleet.EventPlace, e *fleet.Event) bool { t.Errorf("a note is an event: %+v", e); return true })
	w.must(UpdateAccount{Account: "acme", Webhook: &fleet.AccountWebhook{}})
	shows(fmt.Sprintf("map[] 0-%d-1 true ", began+100))
	w.view(func(v *View) {
		if a, _ := v.Account("acme"); a.Webhook != nil {
			t.Errorf("%+v is left", a.Webhook)
		}
	})
}

func TestWebhooksAreBounded(t *testing.T) {
	w := newWorld(t)
	hook := &fleet.AccountWebhook{URL: "https://x", Kinds: []fleet.EventKind{fleet.EventPod}}
	var cmds []Command
	for i := range maxWebhooks + 1 {
		id := fleet.AccountID(fmt.Sprintf("acc%011d", i))
		cmds = append(cmds, PutAccount{Account: fleet.Account{ID: id, Name: "a"}})
		if i < maxWebhooks {
			cmds = append(cmds, UpdateAccount{Account: id, Webhook: hook})
		}
	}
	res, err := w.s.Apply([]entry.Entry{w.entry(cmds...)})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range res[0] {
		if r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	last := fleet.AccountID(fmt.Sprintf("acc%011d", maxWebhooks))
	w.refused(fleet.CodeConflictRule, UpdateAccount{Account: last, Webhook: hook})
	w.must(UpdateAccount{Account: "acc00000000000", Webhook: hook}, UpdateAccount{Account: "acc00000000000", Webhook: &fleet.AccountWebhook{}})
	w.must(UpdateAccount{Account: last, Webhook: hook})
}
