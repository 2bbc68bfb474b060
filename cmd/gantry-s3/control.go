package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"gantry/cmd/internal/watchdog"
)

// What the serving process may ask the supervisor for, each a packet of its own with one packet as its answer.
const (
	askConfig = "config" // servingConfig
	askTLS    = "tls"    // servingTLS
	askAgent  = "agent"  // a connection to the agent, as a descriptor
	askReady  = "ready"  // nothing: it serves
	askAlive  = "alive"  // nothing: it serves still
	askScrape = "scrape" // a listener for those who ask for metrics, as a descriptor
	askShown  = "shown"  // scrape.Material: who may ask for metrics
)

const (
	maxControl    = 128 << 10 // bytes of a packet
	controlWithin = 5 * time.Second
)

// servingConfig is what the serving process is told.
type servingConfig struct {
	Region  string   `json:"region"`
	Domains []string `json:"domains,omitempty"`
	TLS     bool     `json:"tls,omitempty"`
	Addr    string   `json:"addr"`
	Metrics string   `json:"metrics,omitempty"` // where Prometheus asks; empty: nowhere
	// ScrapeTLS says that metrics are served over TLS, with askShown.
	ScrapeTLS bool   `json:"scrapeTLS,omitempty"`
	Version   string `json:"version"`
	// PerAddress is how many connections one address has.
	PerAddress int  `json:"perAddress"`
	Debug      bool `json:"debug,omitempty"`
	// Alive is how often to say that it serves; 0: nobody asks.
	Alive time.Duration `json:"alive,omitempty"`
}

// controlQuestion is the serving process's.
type controlQuestion struct {
	N   uint64 `json:"n"` // its number
	Ask string `json:"ask"`
}

// controlAnswer is the supervisor's.
type controlAnswer struct {
	N     uint64          `json:"n"` // of the question: an answer may come when nobody waits for it any more
	Value json.RawMessage `json:"value,omitempty"`
	Err   string          `json:"err,omitempty"`
}

// controlPair returns the two ends of a control connection.
func controlPair() (here *net.UnixConn, there *os.File, err error) {
	fds, err := syscall.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make a control connection: %w", err)
	}
	there = os.NewFile(uintptr(fds[1]), "control")
	here, err = unixConn(os.NewFile(uintptr(fds[0]), "control"))
	if err != nil {
		return nil, nil, errors.Join(err, there.Close())
	}
	return here, there, nil
}

// unixConn makes a file a connection, and closes it.
func unixConn(f *os.File) (*net.UnixConn, error) {
	defer func() { _ = f.Close() }() // the connection is a copy
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		return nil, errors.Join(errors.New("not a unix socket"), c.Close())
	}
	return u, nil
}

// control is the serving process's end.
type control struct {
	conn   *net.UnixConn
	within time.Duration // for an answer

	mu sync.Mutex // one question at a time
	n  uint64     // the last one
}

// ask asks for something. A descriptor that comes is the caller's to close.
func (c *control) ask(what string, into any) (*os.File, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n++
	question, err := json.Marshal(controlQuestion{N: c.n, Ask: what})
	if err != nil {
		return nil, err
	}
	if err := c.conn.SetDeadline(time.Now().Add(c.within)); err != nil {
		return nil, err
	}
	if _, err := c.conn.Write(question); err != nil {
		return nil, err
	}
	for {
		a, f, err := c.read()
		if err != nil {
			return nil, err
		}
		if a.N != c.n { // of a question that was given up
			_ = f.Close()
			continue
		}
		if err := a.into(into); err != nil {
			_ = f.Close()
			return nil, err
		}
		return f, nil
	}
}

// read reads one answer, whatever its question was. The file is nil when none came.
func (c *control) read() (a controlAnswer, f *os.File, err error) {
	buf, oob := make([]byte, maxControl), make([]byte, unix.CmsgSpace(4))
	n, oobn, _, _, err := c.conn.ReadMsgUnix(buf, oob)
	if err != nil {
		return a, nil, err
	}
	if f, err = oneFile(oob[:oobn]); err != nil {
		return a, nil, err
	}
	if err = json.Unmarshal(buf[:n], &a); err != nil {
		_ = f.Close()
	}
	return a, f, err
}

func (a controlAnswer) into(value any) error {
	if a.Err != "" {
		return errors.New(a.Err)
	}
	if value == nil {
		return nil
	}
	return json.Unmarshal(a.Value, value)
}

func oneFile(oob []byte) (*os.File, error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil || len(messages) == 0 {
		return nil, err
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) == 0 {
		return nil, err
	}
	return os.NewFile(uintptr(fds[0]), "from the supervisor"), nil
}

// dial returns a connection to the agent, which the supervisor opens: the serving process can reach nothing.
func (c *control) dial(context.Context) (*net.UnixConn, error) {
	f, err := c.ask(askAgent, nil)
	if err != nil {
		return nil, err
	}
	if f == nil {
		return nil, errors.New("no connection came")
	}
	return unixConn(f)
}

// answer answers the serving process until the connection ends. It trusts nothing that it reads.
func (s *supervisor) answer(conn *net.UnixConn, ready func()) {
	buf := make([]byte, 64)
	for {
		n, err := conn.Read(buf)
		if err != nil || n == 0 {
			return
		}
		var q controlQuestion
		if json.Unmarshal(buf[:n], &q) != nil {
			return
		}
		var value any
		var f *os.File
		switch q.Ask {
		case askConfig:
			value = s.conf
		case askTLS:
			value, err = s.tls()
		case askAgent:
			f, err = s.dialAgent()
		case askScrape:
			f, err = s.listenScrape()
		case askShown:
			value, err = s.scrape()
		case askReady:
			ready()
		case askAlive:
			watchdog.Feed()
		default:
			return
		}
		if err := reply(conn, q.N, value, f, err); err != nil {
			return
		}
	}
}

func reply(conn *net.UnixConn, n uint64, value any, f *os.File, failed error) error {
	a := controlAnswer{N: n}
	var oob []byte
	if f != nil {
		defer func() { _ = f.Close() }() // the message holds it
		oob = unix.UnixRights(int(f.Fd()))
	}
	if failed != nil {
		a.Err = failed.Error()
	}
	var err error
	if a.Value, err = json.Marshal(value); err != nil {
		return err
	}
	text, err := json.Marshal(a)
	if err != nil {
		return err
	}
	if err := conn.SetWriteDeadline(time.Now().Add(controlWithin)); err != nil {
		return err
	}
	_, _, err = conn.WriteMsgUnix(text, oob, nil)
	return err
}

// listenScrape opens the listener for those who ask for metrics.
func (s *supervisor) listenScrape() (*os.File, error) {
	if s.conf.Metrics == "" {
		return nil, errors.New("there is none")
	}
	l, err := net.Listen("tcp", s.conf.Metrics)
	if err != nil {
		return nil, err
	}
	defer func() { _ = l.Close() }() // the file is a copy
	tcp, ok := l.(*net.TCPListener)
	if !ok {
		return nil, errors.New("the listener is not TCP")
	}
	return tcp.File()
}

// dialAgent opens a connection to the agent.
func (s *supervisor) dialAgent() (*os.File, error) {
	c, err := net.DialTimeout("unix", s.socket, controlWithin/2)
	if err != nil {
		return nil, fmt.Errorf("the agent of this host: %w", err)
	}
	defer func() { _ = c.Close() }() // the file is a copy
	u, ok := c.(*net.UnixConn)
	if !ok {
		return nil, errors.New("the agent's socket is none of unix")
	}
	return u.File()
}
