package queue

import stdheap "container/heap"

// heap orders jobs by less. Each job knows its index, so that any of them can be taken out.
type heap struct {
	jobs  []*Job
	less  func(a, b *Job) bool
	index func(*Job) *int32
}

func (h *heap) Len() int           { return len(h.jobs) }
func (h *heap) Less(a, b int) bool { return h.less(h.jobs[a], h.jobs[b]) }

func (h *heap) Swap(a, b int) {
	h.jobs[a], h.jobs[b] = h.jobs[b], h.jobs[a]
	*h.index(h.jobs[a]), *h.index(h.jobs[b]) = int32(a), int32(b)
}

// Push is for container/heap; use add.
func (h *heap) Push(x any) {
	j := x.(*Job)
	*h.index(j) = int32(len(h.jobs))
	h.jobs = append(h.jobs, j)
}

// Pop is for container/heap; use remove.
func (h *heap) Pop() any {
	last := len(h.jobs) - 1
	j := h.jobs[last]
	h.jobs[last] = nil
	h.jobs = h.jobs[:last]
	*h.index(j) = -1
	return j
}

func (h *heap) add(j *Job)    { stdheap.Push(h, j) }
func (h *heap) remove(j *Job) { stdheap.Remove(h, int(*h.index(j))) }
func (h *heap) fix(j *Job)    { stdheap.Fix(h, int(*h.index(j))) }

// first returns the least job, or nil.
func (h *heap) first() *Job {
	if len(h.jobs) == 0 {
		return nil
	}
	return h.jobs[0]
}
