package state

import (
	"maps"
	"reflect"
	"slices"

	"gantry/fleet"
	"gantry/scheduler/state/table"
)

// The tests' worlds hold, of every command that any test applies, that those who watch are told of each record that changed. It
// costs a look at all records, so that worlds of more than these are left out.
const watchedRows = 400

// eventOf is what those who watch are told of a record that changed; a zero Kind: nobody watches it.
var eventOf = map[string]func(key string, row any) []Event{
	"pods":            keyed(KindPod),
	"hosts":           keyed(KindHost),
	"generations":     keyed(KindAssign),
	"keys":            keyed(KindKey),
	"accounts":        keyed(KindAccount),
	"sshKeys":         keyed(KindAccount),
	"centers":         keyed(KindCatalog),
	"members":         keyed(KindMember),
	"backends":        keyed(KindStorage),
	"catalog":         single(KindCatalog),
	"cluster":         single(KindMember),
	"networkSettings": single(KindNetwork),
	"templates":       owner(func(row any) fleet.AccountID { return row.(*fleet.Template).Account }),
	"registries":      owner(func(row any) fleet.AccountID { return row.(*fleet.Registry).Account }),
	"secrets":         owner(func(row any) fleet.AccountID { return row.(*fleet.AccountSecret).Account }),
	"s3Keys":          owner(func(row any) fleet.AccountID { return row.(*fleet.S3Key).Account }),
	"clusters":        owner(func(row any) fleet.AccountID { return row.(*fleet.Cluster).Account }),
	"endpoints":       owner(func(row any) fleet.AccountID { return row.(*fleet.Endpoint).Account }),
	"volumes": func(_ string, row any) []Event {
		v := row.(*fleet.Volume)
		return []Event{{Kind: KindAccount, ID: string(v.Account)}, {Kind: KindStorage, ID: string(v.Backend)}}
	},
	"overlayMembers": func(_ string, row any) []Event {
		return []Event{{Kind: KindNetwork, ID: string(row.(*fleet.OverlayMember).Overlay)}}
	},
}

func keyed(kind Kind) func(string, any) []Event {
	return func(key string, _ any) []Event { return []Event{{Kind: kind, ID: key}} }
}

func single(kind Kind) func(string, any) []Event {
	return func(string, any) []Event { return []Event{{Kind: kind}} }
}

func owner(of func(any) fleet.AccountID) func(string, any) []Event {
	return func(_ string, row any) []Event { return []Event{{Kind: KindAccount, ID: string(of(row))}} }
}

// rows returns all records that somebody watches, as they are in the tables.
func (w *world) rows() map[table.Slot]any {
	out := map[table.Slot]any{}
	w.view(func(v *View) {
		tb := v.tb
		collect(out, &tb.pods)
		collect(out, &tb.hosts)
		collect(out, &tb.generations)
		collect(out, &tb.keys)
		collect(out, &tb.accounts)
		collect(out, &tb.sshKeys)
		collect(out, &tb.centers)
		collect(out, &tb.members)
		collect(out, &tb.backends)
		collect(out, &tb.catalog)
		collect(out, &tb.cluster)
		collect(out, &tb.networkSettings)
		collect(out, &tb.templates)
		collect(out, &tb.registries)
		collect(out, &tb.secrets)
		collect(out, &tb.s3Keys)
		collect(out, &tb.volumes)
		collect(out, &tb.endpoints)
		collect(out, &tb.clusters)
		collect(out, &tb.overlayMembers)
	})
	return out
}

func collect[K ~string, T any](out map[table.Slot]any, tab *table.Table[K, T]) {
	for key, row := range tab.Rows {
		out[table.Slot{Bucket: tab.Bucket, Key: string(key)}] = row
	}
}

// watch returns a function that fails when a record has changed since without an event that says so.
func (w *world) watch() (told func()) {
	w.t.Helper()
	before, index := w.rows(), w.s.Index()
	if len(before) > watchedRows {
		return func() {}
	}
	return func() {
		w.t.Helper()
		events, _, ok := w.s.Events(index)
		if !ok {
			return // more than are kept
		}
		after := w.rows()
		for at := range maps.Keys(both(before, after)) {
			old, row := before[at], after[at]
			if reflect.DeepEqual(old, row) || revisionOf(old) == revisionOf(row) {
				continue
			}
			if row == nil {
				if row = old; at.Bucket == "generations" {
					continue // it went with its host
				}
			}
			for _, want := range eventOf[at.Bucket](at.Key, row) {
				if !slices.ContainsFunc(events, func(e Event) bool { return e.Kind == want.Kind && e.ID == want.ID }) {
					w.t.Errorf("%s %s changed and nobody is told: %v", at.Bucket, at.Key, events)
				}
			}
		}
	}
}

// revisionOf returns the revision of a member of an overlay: what has no new one is nothing that anybody needs to know. Of all else, and
// of what is not there, it is a number that no other has.
func revisionOf(row any) any {
	if m, ok := row.(*fleet.OverlayMember); ok {
		return m.Rev
	}
	return new(int)
}

func both(a, b map[table.Slot]any) map[table.Slot]any {
	out := maps.Clone(a)
	maps.Copy(out, b)
	return out
}
