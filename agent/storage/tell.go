package storage

import (
	"errors"
	"maps"
	"slices"
	"time"

	"gantry/agent/pod"
	"gantry/internal/agentrpc"
	"gantry/storage/volume"
)

// sentenceOf words for the volume's owner why a piece of work failed. The rest is for the host's log.
func sentenceOf(kind string, err error) string {
	var e *volume.Error
	if errors.As(err, &e) && e.Sentence != "" {
		return pod.Readable(e.Sentence, pod.MaxReason)
	}
	return map[string]string{
		workMake:    "the volume's storage could not be made yet; its storage host tries again",
		workRemove:  "the volume's data could not be removed yet; its storage host tries again",
		workMeasure: "what the volume holds could not be measured; its storage host tries again",
	}[kind]
}

// Begin has everything told again. When the session brings no set in a while, there is nothing to do any
// more: what it did not bring when it ends, it cannot.
func (s *Role) Begin() (ended func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.session++
	session := s.session
	for _, b := range s.backends {
		for _, w := range b.volumes {
			w.news = w.known()
		}
	}
	if len(s.backends) > 0 {
		time.AfterFunc(setWithin, func() { s.expire(session) })
	}
	s.wake()
	return s.ended
}

// expire drops the set when a session that still stands has brought none.
func (s *Role) expire(session int) {
	s.mu.Lock()
	late := s.session == session && s.heard != session
	s.mu.Unlock()
	if late {
		s.log.Warn("scheduler cancelled the work on network volumes")
		s.Set(&agentrpc.StorageSet{})
	}
}

// ended notes that the newest session stands no more: what it did not bring, it cannot.
func (s *Role) ended() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.session++
}

// unsent returns a message with what was not told yet, or nil when there is none. When more is left it wakes the session.
func (s *Role) unsent() *agentrpc.StorageReports {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := &agentrpc.StorageReports{}
	for _, id := range slices.Sorted(maps.Keys(s.backends)) {
		b := s.backends[id]
		for _, id := range slices.Sorted(maps.Keys(b.volumes)) {
			w := b.volumes[id]
			if !w.news {
				continue
			}
			if len(out.Volumes) == maxStorageReports {
				s.wake()
				return out
			}
			w.news = false
			out.Volumes = append(out.Volumes, w.report())
		}
	}
	if len(out.Volumes) == 0 {
		return nil
	}
	return out
}

// report is what has become of the volume.
func (w *volumeWork) report() *agentrpc.StorageReport {
	out := &agentrpc.StorageReport{VolumeId: string(w.order.ID), Problem: w.problem}
	if w.order.Gone {
		out.Gone = w.gone
		return out
	}
	out.ProvisionedGb, out.UsedBytes, out.Measured = w.madeGB, w.used, w.measured
	return out
}

// Next returns what is to be told of network volumes, or nil.
func (s *Role) Next() *agentrpc.Up {
	if r := s.unsent(); r != nil {
		return &agentrpc.Up{Kind: &agentrpc.Up_Storage{Storage: r}}
	}
	return nil
}
