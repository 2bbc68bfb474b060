package watchdog

import (
	"net"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// systemd is the socket of a service manager.
func systemd(t *testing.T, limit time.Duration) *net.UnixConn {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram", Name: path})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	t.Setenv("NOTIFY_SOCKET", path)
	t.Setenv("WATCHDOG_USEC", strconv.FormatInt(limit.Microseconds(), 10))
	return conn
}

// fed waits for food.
func fed(t *testing.T, conn *net.UnixConn, within time.Duration) bool {
	t.Helper()
	if err := conn.SetReadDeadline(time.Now().Add(within)); err != nil {
		t.Fatal(err)
	}
	text := make([]byte, 64)
	n, err := conn.Read(text)
	if err == nil && string(text[:n]) != "WATCHDOG=1" {
		t.Fatalf("systemd was told %q", text[:n])
	}
	return err == nil
}

// What moves is fed, until its owner stops it; what does not, is not.
func TestOnlyWhatMovesIsFed(t *testing.T) {
	conn := systemd(t, 30*time.Millisecond)
	var stuck atomic.Bool
	asked := make(chan struct{})
	stop := Start(func() bool {
		if !stuck.Load() {
			return true
		}
		select {
		case asked <- struct{}{}:
		default: // nobody waits for it
		}
		return false
	})
	for range 3 {
		if !fed(t, conn, 10*time.Second) {
			t.Fatal("it moves, and is not fed")
		}
	}
	stuck.Store(true)
	<-asked
	for fed(t, conn, time.Millisecond) { // what was sent before
	}
	for range 3 {
		<-asked
	}
	if fed(t, conn, time.Millisecond) {
		t.Error("it does not move, and is fed")
	}
	stuck.Store(false)
	if !fed(t, conn, 10*time.Second) {
		t.Error("it moves again, and is not fed")
	}
	stop()
	for fed(t, conn, time.Millisecond) {
	}
	if fed(t, conn, 50*time.Millisecond) {
		t.Error("it is fed after its end")
	}
}

func TestWithoutAWatchdogNothingIsAsked(t *testing.T) {
	conn := systemd(t, 0)
	t.Setenv("WATCHDOG_USEC", "")
	stop := Start(func() bool {
		t.Error("it was asked")
		return true
	})
	stop()
	if fed(t, conn, 10*time.Millisecond) {
		t.Error("it was fed")
	}
}
