package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"gantry/cmd/internal/watchdog"
	"gantry/internal/ipc"
)

// What the serving process may ask the supervisor for, each a question of internal/ipc.
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
	maxQuestion   = 1 << 10   // bytes
	maxControl    = 128 << 10 // of an answer
	controlWithin = 5 * time.Second
)

// servingConfig is what the serving process is told.
type servingConfig struct {
	Region  string   `json:"region"`
	Domains []string `json:"domains,omitempty"`
	Origins []string `json:"origins,omitempty"`
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

// control is the serving process's end.
type control struct {
	conn   *ipc.Conn
	within time.Duration // for an answer
}

// ask asks for something. A descriptor that comes is the caller's to close.
func (c *control) ask(ctx context.Context, what string, into any) (*os.File, error) {
	ctx, cancel := context.WithTimeout(ctx, c.within)
	defer cancel()
	files, err := c.conn.Call(ctx, what, nil, into)
	if err != nil || len(files) == 0 {
		return nil, err
	}
	ipc.CloseAll(files[1:])
	return files[0], nil
}

// dial returns a connection to the agent, which the supervisor opens: the serving process can reach nothing.
func (c *control) dial(ctx context.Context) (*net.UnixConn, error) {
	f, err := c.ask(ctx, askAgent, nil)
	if err != nil {
		return nil, err
	}
	if f == nil {
		return nil, errors.New("no connection came")
	}
	return ipc.Socket(f)
}

// answer answers the serving process until the connection ends. It trusts nothing that it reads.
func (s *supervisor) answer(ctx context.Context, conn *net.UnixConn, ready func()) {
	server := ipc.Server{
		Sock: conn, Question: maxQuestion, Answer: maxControl, Within: controlWithin,
		Handle: func(_ context.Context, m ipc.Message, files []*os.File) (ipc.Reply, error) {
			ipc.CloseAll(files)
			value, f, err := s.reply(m.Verb, ready)
			if f == nil {
				return ipc.Reply{Value: value}, err
			}
			return ipc.Reply{FDs: []int{int(f.Fd())}, Sent: func() { _ = f.Close() }}, err // the message holds it
		},
	}
	_ = server.Serve(ctx) // its end is that of the serving process
}

func (s *supervisor) reply(what string, ready func()) (value any, f *os.File, err error) {
	switch what {
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
		err = ipc.ErrHangUp
	}
	return value, f, err
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
		return nil, errors.New("the agent's socket is not a unix socket")
	}
	return u.File()
}
