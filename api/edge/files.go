package edge

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync/atomic"
	"time"
)

// Pair names the PEM files of a certificate, with its chain, and of its key.
type Pair struct{ Cert, Key string }

// Files are certificates that lie in files. It is safe for concurrent use.
type Files struct {
	pairs []Pair
	now   atomic.Pointer[[]*tls.Certificate]
	seen  []stamp // of the files, when they were last read; Run's alone
	fault string  // why they could not be used then; Run's alone
	log   *slog.Logger
}

// stamp tells whether a file is another one than before.
type stamp struct {
	size    int64
	changed time.Time
}

// OpenFiles reads certificates. The first is for clients that ask for a name that none is for.
func OpenFiles(pairs []Pair, log *slog.Logger) (*Files, error) {
	f := &Files{pairs: pairs, log: log}
	f.seen = f.stamps()
	certs, err := f.read()
	if err != nil {
		return nil, err
	}
	for i, c := range certs {
		if err := untimely(c); err != nil {
			log.Error("clients refuse the certificate: replace it", "file", pairs[i].Cert, "err", err)
		}
	}
	f.now.Store(&certs)
	return f, nil
}

// Certificate returns the certificate for what a client asks for.
func (f *Files) Certificate(hello *tls.ClientHelloInfo) *tls.Certificate {
	certs := *f.now.Load()
	for _, c := range certs {
		if hello.SupportsCertificate(c) == nil {
			return c
		}
	}
	return certs[0]
}

// Run reads the files again when they have changed, which it looks for at every interval, until ctx ends. Connections go on.
// What cannot be used is said in the log, and the certificates of before stay until it can.
func (f *Files) Run(ctx context.Context, every time.Duration) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			f.look()
		case <-ctx.Done():
			return nil
		}
	}
}

func (f *Files) look() {
	now := f.stamps()
	same := len(now) == len(f.seen)
	for i := range now {
		same = same && now[i].size == f.seen[i].size && now[i].changed.Equal(f.seen[i].changed)
	}
	if same && f.fault == "" {
		return
	}
	f.seen = now
	certs, err := f.read()
	for i := 0; err == nil && i < len(certs); i++ {
		if err = untimely(certs[i]); err != nil {
			err = fmt.Errorf("%s: %w", f.pairs[i].Cert, err)
		}
	}
	if err != nil {
		if !same || err.Error() != f.fault {
			f.log.Error("the changed certificate files cannot be used; the certificates of before stay", "err", err)
		}
		f.fault = err.Error() // it may be mended without a file that changes, as by chmod
		return
	}
	f.fault = ""
	f.now.Store(&certs)
	f.log.Info("reloaded certificate files", "until", certs[0].Leaf.NotAfter)
}

func (f *Files) stamps() []stamp {
	out := make([]stamp, 0, 2*len(f.pairs))
	for _, p := range f.pairs {
		for _, path := range []string{p.Cert, p.Key} {
			var s stamp
			if info, err := os.Stat(path); err == nil {
				s = stamp{info.Size(), info.ModTime()}
			}
			out = append(out, s)
		}
	}
	return out
}

func (f *Files) read() ([]*tls.Certificate, error) {
	out := make([]*tls.Certificate, 0, len(f.pairs))
	for _, p := range f.pairs {
		info, err := os.Stat(p.Key)
		if err != nil {
			return nil, fmt.Errorf("the certificate's key: %w", err)
		}
		if info.Mode()&(fs.ModePerm&0o007) != 0 {
			return nil, fmt.Errorf("the certificate's key %s can be used by everybody: chmod o= %s", p.Key, p.Key)
		}
		pair, err := tls.LoadX509KeyPair(p.Cert, p.Key)
		if err != nil {
			return nil, fmt.Errorf("the certificate %s with the key %s: %w", p.Cert, p.Key, err)
		}
		out = append(out, &pair)
	}
	if len(out) == 0 {
		return nil, errors.New("no certificate is named")
	}
	return out, nil
}

func untimely(c *tls.Certificate) error {
	now := time.Now()
	switch {
	case now.After(c.Leaf.NotAfter):
		return fmt.Errorf("it ended on %s", c.Leaf.NotAfter.Format(time.RFC3339))
	case now.Before(c.Leaf.NotBefore):
		return fmt.Errorf("it begins on %s: is the clock right?", c.Leaf.NotBefore.Format(time.RFC3339))
	}
	return nil
}

// ends tells when the certificates end, by their first names. Of several with one name the earliest counts.
func (f *Files) ends(out map[string]time.Time) {
	for i, c := range *f.now.Load() {
		name := f.pairs[i].Cert
		if len(c.Leaf.DNSNames) > 0 {
			name = c.Leaf.DNSNames[0]
		}
		if at, ok := out[name]; !ok || c.Leaf.NotAfter.Before(at) {
			out[name] = c.Leaf.NotAfter
		}
	}
}
