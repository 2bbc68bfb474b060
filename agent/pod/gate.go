package pod

import "context"

// open has the gate answer the pod, if it is a worker of an endpoint. begins says that its process does not run yet.
func (m *machine) open(want Assignment, incarnation uint64, begins bool) error {
	if want.Endpoint == "" || m.Gate == nil {
		return nil
	}
	if err := m.Gate.Open(m.id, incarnation, begins); err != nil {
		return &Error{Class: Retry, Sentence: "the host cannot listen for the worker in its network", Err: err}
	}
	return nil
}

// drain has the gate send a worker home that is to end: what SIGTERM is sent to would wait for its poll.
func (m *machine) drain(want Assignment, running uint64) {
	if m.Gate == nil {
		return
	}
	if want.Endpoint != "" { // such as after a restart of the agent
		if err := m.Gate.Open(m.id, running, false); err != nil {
			m.Log.Warn("listen for a worker that ends", "pod", m.id, "err", err)
		}
	}
	m.Gate.Drain(m.id)
}

// freeze has a worker stand still. The gate is told before, so that no job comes to what does not run.
func (m *machine) freeze(ctx context.Context, want Assignment) error {
	if err := m.open(want, want.Incarnation, false); err != nil {
		return err
	}
	if m.Gate != nil {
		m.Gate.Freeze(m.id)
	}
	return m.Runtime.Freeze(ctx, m.id, true)
}

// thaw has a worker go on, and then ask for jobs anew.
func (m *machine) thaw(ctx context.Context, want Assignment) error {
	if err := m.open(want, want.Incarnation, false); err != nil {
		return err
	}
	err := m.Runtime.Freeze(ctx, m.id, false)
	if err == nil && m.Gate != nil {
		m.Gate.Thaw(m.id)
	}
	return err
}
