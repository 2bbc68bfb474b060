package rest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"net/http"
	"reflect"
	"strconv"
	"sync"
	"time"

	"gantry/api/v2"
	"gantry/fleet"
)

const (
	// podTextsMost is how many bytes the texts of all accounts' pods may take, and podTextsShare how many of these one account's.
	podTextsMost  = 64 << 20
	podTextsShare = podTextsMost / 4
	// podTextCost is what a text takes beside its bytes.
	podTextCost = 512
	// listBufferMost is the largest buffer of a list that is kept for the next one.
	listBufferMost = 4 << 20
)

// podTexts keeps the JSON of pods as lists show them: a record is encoded once per version, whoever reads it how often. All who may list
// an account's pods are shown the same of them.
type podTexts struct {
	most, share int
	buffers     sync.Pool // of *[]byte

	mu    sync.Mutex // guards the fields below
	size  int
	lists uint64 // that were looked up
	of    map[fleet.AccountID]*podShelf
}

// podShelf has the texts of an account's pods. It is replaced and never changed, except for used.
type podShelf struct {
	texts map[fleet.PodID]*podText
	size  int
	used  uint64 // the list that looked it up last
}

// podText is the JSON of one pod, cut where its gauges stand.
type podText struct {
	key   podKey
	parts [][]byte
	size  int
}

// podKey is what a text is made of. A field that is added to fleet.PodView counts without being named here.
type podKey struct {
	view     fleet.PodView // without Live: what is live are the progress, and the gauges
	progress v2.Progress
	heard    bool
}

func newPodTexts(most, share int) *podTexts {
	return &podTexts{most: most, share: share, of: map[fleet.AccountID]*podShelf{}}
}

func keyOfPod(v *fleet.PodView) podKey {
	key := podKey{view: *v}
	key.view.Live = nil
	if p := progressOf(v); p != nil {
		key.progress, key.heard = *p, true
	}
	return key
}

// anyGauge stands in a text for a number that is still to come. A text that has it elsewhere is not kept.
const anyGauge = math.MinInt64

// cutPod encodes a pod. It returns one part more than the pod has gauges, or another number when the pod's own texts have what stands for
// one.
func cutPod(v *fleet.PodView) ([][]byte, error) {
	record, open := podRecord(v, time.Time{}), gaugesOf(nil, v, time.Time{})
	for i := range open {
		open[i] = anyGauge
	}
	record.Runtime = runtimeOf(v, open)
	text, err := jsonLine(record)
	return bytes.Split(bytes.Clone(bytes.TrimSuffix(text, []byte("\n"))), strconv.AppendInt(nil, anyGauge, 10)), err
}

// jsonLine is v as answers have it, which ends with a newline.
func jsonLine(v any) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, fmt.Errorf("encode answer: %w", err)
	}
	return buf.Bytes(), nil
}

// shelf returns what is kept of an account's pods; it may be nil.
func (c *podTexts) shelf(account fleet.AccountID) *podShelf {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lists++
	s := c.of[account]
	if s != nil {
		s.used = c.lists
	}
	return s
}

// list appends the pods, of one account, as the items of a JSON array. of is how many the account has.
func (c *podTexts) list(dst []byte, account fleet.AccountID, views []fleet.PodView, of int, now time.Time) ([]byte, error) {
	var kept map[fleet.PodID]*podText
	if s := c.shelf(account); s != nil {
		kept = s.texts
	}
	var fresh []*podText
	var gauges []int64
	for i := range views {
		v := &views[i]
		if i > 0 {
			dst = append(dst, ',')
		}
		gauges = gaugesOf(gauges[:0], v, now)
		text, key := kept[v.Pod.ID], keyOfPod(v)
		if text == nil || text.key != key {
			parts, err := cutPod(v)
			if err != nil {
				return nil, err
			}
			if len(parts) != len(gauges)+1 {
				if dst, err = appendPod(dst, v, now); err != nil {
					return nil, err
				}
				continue
			}
			text = &podText{key: key, parts: parts, size: podTextCost}
			for _, part := range parts {
				text.size += 2 * len(part) // the record that it was made of may be replaced, and remains as long as the text
			}
			fresh = append(fresh, text)
		}
		dst = text.append(dst, gauges)
	}
	if len(fresh) > 0 {
		c.keep(account, kept, fresh, of)
	}
	return dst, nil
}

func (t *podText) append(dst []byte, gauges []int64) []byte {
	dst = append(dst, t.parts[0]...)
	for i, part := range t.parts[1:] {
		dst = append(strconv.AppendInt(dst, gauges[i], 10), part...)
	}
	return dst
}

// appendPod appends what is not kept.
func appendPod(dst []byte, v *fleet.PodView, now time.Time) ([]byte, error) {
	text, err := jsonLine(podRecord(v, now))
	return append(dst, bytes.TrimSuffix(text, []byte("\n"))...), err
}

// keep adds texts to those of an account that has a number of pods, and forgets those of the accounts that were not asked for longest
// where all are too many.
func (c *podTexts) keep(account fleet.AccountID, kept map[fleet.PodID]*podText, fresh []*podText, pods int) {
	next := &podShelf{texts: maps.Clone(kept)}
	if len(kept)+len(fresh) > 2*pods { // most are of pods that are gone
		next.texts = nil
	}
	if next.texts == nil {
		next.texts = make(map[fleet.PodID]*podText, len(fresh))
	}
	for _, t := range next.texts {
		next.size += t.size
	}
	for _, t := range fresh {
		old := next.texts[t.key.view.Pod.ID]
		if old != nil {
			next.size -= old.size
			delete(next.texts, t.key.view.Pod.ID)
		}
		if next.size+t.size <= c.share {
			next.texts[t.key.view.Pod.ID] = t
			next.size += t.size
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	next.used = c.lists
	if last := c.of[account]; last != nil {
		c.size -= last.size
	}
	c.of[account] = next
	for c.size += next.size; c.size > c.most; {
		c.forget()
	}
}

// forget forgets the account that was not asked for longest.
func (c *podTexts) forget() {
	var oldest fleet.AccountID
	used := uint64(math.MaxUint64)
	for id, s := range c.of {
		if s.used < used {
			oldest, used = id, s.used
		}
	}
	c.size -= c.of[oldest].size
	delete(c.of, oldest)
}

// writePods answers with the part of the pods that is asked for, of an account that has a number of them.
func (a *API) writePods(c *call, views []fleet.PodView, of int) error {
	from, to, next, err := c.page(len(views), func(i int, aged bool) string {
		p := views[i].Pod
		return itemKey(reflect.ValueOf(v2.Pod{ID: string(p.ID), CreatedAt: v2.At(p.CreatedAt)}), aged)
	})
	if err != nil {
		return err
	}
	around, err := jsonLine(v2.PodList{Page: v2.Page{Next: next}, Pods: []v2.Pod{}})
	if err != nil {
		return err
	}
	end := bytes.LastIndexByte(around, ']')
	buf, _ := a.podTexts.buffers.Get().(*[]byte)
	if buf == nil {
		buf = new([]byte)
	}
	body, err := a.podTexts.list(append((*buf)[:0], around[:end]...), c.who.Account, views[from:to], of, a.now())
	if err != nil {
		return err
	}
	body = append(body, around[end:]...)
	writeBody(c.w, http.StatusOK, body)
	if *buf = body; cap(body) <= listBufferMost {
		a.podTexts.buffers.Put(buf)
	}
	return nil
}
