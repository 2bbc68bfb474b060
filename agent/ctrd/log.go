package ctrd

import (
	"context"
	"io"
	"log/slog"
	"regexp"
	"sync/atomic"

	"github.com/containerd/log"
	"github.com/sirupsen/logrus"
)

// clientLog carries what containerd's client library logs into our log, all at debug level: what
// matters of it comes back as an error too. It takes the library's own levels info and above.
type clientLog struct {
	log    *slog.Logger
	closed atomic.Bool
}

var _ logrus.Hook = (*clientLog)(nil)

// newClientLog returns the logger for contexts. It also takes over the library's logger for code
// without context, which there is once per process: the newest Runtime has it.
func newClientLog(to *slog.Logger) (*clientLog, *log.Entry) {
	c := &clientLog{log: to}
	own := logrus.New()
	c.takeOver(own)
	c.takeOver(log.L.Logger)
	return c, logrus.NewEntry(own)
}

func (c *clientLog) takeOver(l *logrus.Logger) {
	hooks := logrus.LevelHooks{}
	hooks.Add(c)
	l.ReplaceHooks(hooks)
	l.SetOutput(io.Discard)
}

// Levels is part of logrus.Hook.
func (c *clientLog) Levels() []logrus.Level { return logrus.AllLevels }

// addressTail is where an address holds tokens: its query, and what stands before its host.
var (
	addressTail = regexp.MustCompile(`(https?://[^\s"?]*)\?[^\s"]*`)
	addressUser = regexp.MustCompile(`(https?://)[^\s"/@]*@`)
)

// Fire is part of logrus.Hook.
func (c *clientLog) Fire(e *logrus.Entry) error {
	if c.closed.Load() || !c.log.Enabled(context.Background(), slog.LevelDebug) {
		return nil
	}
	said := addressUser.ReplaceAllString(addressTail.ReplaceAllString(e.Message, "$1"), "$1")
	attrs := []any{"said", said, "severity", e.Level.String()}
	if err, ok := e.Data[logrus.ErrorKey].(error); ok && err != nil {
		attrs = append(attrs, "err", withoutAddress(err))
	}
	c.log.Debug("containerd's client", attrs...)
	return nil
}

// close ends the forwarding.
func (c *clientLog) close() { c.closed.Store(true) }
