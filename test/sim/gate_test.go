package sim

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"time"

	"gantry/agent/pod"
	"gantry/fleet"
	"gantry/internal/sleep"
	"gantry/netctl"
	library "gantry/test/program/worker"
)

// gates are where workers reach their host's agent: a listener in each network namespace.
type gates struct {
	mu        sync.Mutex // guards the fields below; nothing is called while it is held
	listeners map[string]*gateListener
	pipes     []net.Conn
}

type gateListener struct {
	of    *gates
	name  string
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

// listen implements agent.Config.ListenIn.
func (g *gates) listen(namespace, _ string) (net.Listener, error) {
	l := &gateListener{of: g, name: namespace, conns: make(chan net.Conn), done: make(chan struct{})}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.listeners == nil {
		g.listeners = map[string]*gateListener{}
	}
	g.listeners[namespace] = l
	return l, nil
}

// Accept implements net.Listener.
func (l *gateListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *gateListener) Close() error {
	l.once.Do(func() {
		close(l.done)
		l.of.mu.Lock()
		defer l.of.mu.Unlock()
		if l.of.listeners[l.name] == l {
			delete(l.of.listeners, l.name)
		}
	})
	return nil
}

// Addr implements net.Listener.
func (l *gateListener) Addr() net.Addr { return wireAddr(fleet.WorkerGate) }

// dial connects from within a namespace.
func (g *gates) dial(ctx context.Context, namespace string) (net.Conn, error) {
	g.mu.Lock()
	l := g.listeners[namespace]
	g.mu.Unlock()
	if l == nil {
		return nil, syscall.ECONNREFUSED
	}
	mine, theirs := net.Pipe()
	select {
	case l.conns <- theirs:
		g.mu.Lock()
		defer g.mu.Unlock()
		g.pipes = append(g.pipes, mine, theirs)
		return mine, nil
	case <-l.done:
		return nil, syscall.ECONNREFUSED
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// hangUp is what an agent's death does: what it listened on is gone, and what it had begun to say.
func (g *gates) hangUp() {
	g.mu.Lock()
	all, pipes := g.listeners, g.pipes
	g.listeners, g.pipes = nil, nil
	g.mu.Unlock()
	for _, l := range all {
		_ = l.Close()
	}
	for _, c := range pipes {
		_ = c.Close()
	}
}

// program is the process of a worker: a library that speaks with the agent. Its machine's lock guards thawed.
type program struct {
	m      *machine
	id     fleet.PodID
	number uint64
	term   context.CancelFunc // SIGTERM
	gone   context.Context    // ends with the process
	die    context.CancelFunc
	thawed chan struct{} // not nil while it stands still

	mu    sync.Mutex
	twist map[string]string // how it misbehaves, by job
}

// isWorker reports whether a container's process asks for jobs.
func isWorker(spec pod.ContainerSpec) bool {
	return spec.Env["RUNPOD_WEBHOOK_GET_JOB"] != "" && behaviorOf(spec.Image).kind != "fail"
}

// work begins a worker's program; mu is held.
func (m *machine) work(b *box) {
	m.programsBegun++
	p := &program{m: m, id: b.spec.Pod, number: m.programsBegun, twist: map[string]string{}}
	var term context.Context
	term, p.term = context.WithCancel(context.Background())
	p.gone, p.die = context.WithCancel(context.Background())
	b.program = p
	env, pid, namespace := b.spec.Env, b.PID, netctl.NamespaceName(m.instance, string(p.id))
	exit := func(code int) {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.boxes[p.id] == b && b.PID == pid {
			m.exit(b, code, false)
		}
	}
	way := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return m.gates.dial(ctx, namespace) }}
	config := library.Config{
		Env: func(name string) string { return env[name] }, Library: "1.10", Handler: "any", Concurrency: 1 + m.rng.IntN(2), Exit: exit,
		Say: func(string) {}, Client: &http.Client{Transport: &workerWay{program: p, Transport: way}},
	}
	m.programs.Go(func() {
		defer way.CloseIdleConnections()
		if err := library.Run(term, config); err != nil {
			m.watch.broke("worker %s: %v", p.id, err)
		}
		exit(0)
	})
}

// powerOff ends every process for good.
func (m *machine) powerOff() {
	m.mu.Lock()
	for _, b := range m.boxes {
		if b.program != nil {
			b.program.term()
			b.program.die()
		}
	}
	m.mu.Unlock()
	m.programs.Wait()
}

// workerWay is what a worker's library sends its requests through. It notes what the worker was told, and misbehaves.
type workerWay struct {
	*program
	*http.Transport
}

var errGone = errors.New("the process has ended")

// still waits while the process is frozen. Errors: it has ended.
func (p *program) still() error {
	for {
		p.m.mu.Lock()
		thawed := p.thawed
		p.m.mu.Unlock()
		switch {
		case p.gone.Err() != nil:
			return errGone
		case thawed == nil:
			return nil
		}
		select {
		case <-thawed:
		case <-p.gone.Done():
		}
	}
}

// freeze has the process stand still, or go on; the machine's lock is held.
func (p *program) freeze(frozen bool) {
	switch {
	case p == nil:
	case frozen && p.thawed == nil:
		p.thawed = make(chan struct{})
	case !frozen && p.thawed != nil:
		close(p.thawed)
		p.thawed = nil
	}
}

// How a job's input has its worker misbehave.
const (
	twistLate   = "late"   // its result comes when nobody counts with it any more
	twistTwice  = "twice"  // it comes twice
	twistVanish = "vanish" // it never comes, and the worker has forgotten the job
	lateBy      = 40 * time.Second
)

// RoundTrip implements http.RoundTripper.
func (w *workerWay) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := w.still(); err != nil {
		return nil, err
	}
	job := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
	if !strings.Contains(r.URL.Path, "/job-done/") {
		res, err := w.send(r)
		if err == nil && res.StatusCode == http.StatusOK && strings.Contains(r.URL.Path, "/job-take") {
			err = w.take(res)
		}
		return res, err
	}
	w.mu.Lock()
	twist := w.twist[job]
	w.mu.Unlock()
	switch twist {
	case twistLate: // once: what else the worker says of the job comes in time
		w.mu.Lock()
		delete(w.twist, job)
		w.mu.Unlock()
		_ = sleep.For(w.gone, lateBy) //nolint:contextcheck // the worker may have left the request, which comes nevertheless
		r = r.WithContext(w.gone)     //nolint:contextcheck // as above
	case twistTwice:
		again := r.Clone(r.Context())
		again.Body, _ = r.GetBody()
		if res, err := w.done(again, job); err != nil || res.StatusCode != http.StatusOK {
			return res, err
		}
	case twistVanish:
		w.m.watch.dropped(w.program, job)
		return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Header: http.Header{}, Request: r}, nil
	}
	return w.done(r, job)
}

// done sends what the worker says of a job.
func (w *workerWay) done(r *http.Request, job string) (*http.Response, error) {
	body, err := r.GetBody()
	if err != nil {
		return nil, err
	}
	var said struct {
		Status string
		Error  any
	}
	if err := json.NewDecoder(body).Decode(&said); err != nil {
		return nil, err
	}
	began := time.Now()
	res, err := w.send(r)
	if err != nil {
		w.m.watch.unanswered(w.program, job, time.Since(began), err)
	}
	if err == nil && said.Status == "" {
		w.m.watch.answered(w.program, job, res.StatusCode, said.Error == nil)
	}
	return res, err
}

// send carries a request to the agent and the whole answer back, while the process lives and does not stand still.
func (w *workerWay) send(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(w.gone, cancel)() //nolint:contextcheck // the process ends the request, too
	res, err := w.Transport.RoundTrip(r.WithContext(ctx))
	if err != nil {
		_ = sleep.For(ctx, time.Second) // the library asks again at once, which nobody here wants to watch
		return nil, err
	}
	body, err := io.ReadAll(res.Body)
	if err = errors.Join(err, res.Body.Close(), w.still()); err != nil {
		return nil, err
	}
	res.Body = io.NopCloser(bytes.NewReader(body))
	return res, nil
}

// take notes which jobs the worker was given.
func (w *workerWay) take(res *http.Response) error {
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return err
	}
	res.Body = io.NopCloser(bytes.NewReader(body))
	type given struct {
		ID    string
		Input struct{ Twist string }
	}
	var all []given
	if bytes.HasPrefix(body, []byte("[")) {
		err = json.Unmarshal(body, &all)
	} else {
		all = make([]given, 1)
		err = json.Unmarshal(body, &all[0])
	}
	for _, j := range all {
		w.mu.Lock()
		w.twist[j.ID] = j.Input.Twist
		w.mu.Unlock()
		w.m.watch.took(w.program, j.ID)
	}
	return err
}
