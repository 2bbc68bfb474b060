package s3clients

import (
	"net"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// systemd's watchdog is fed while the process serves that clients speak to, and not while that one hangs.
func TestOnlyAServerThatServesIsFed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	notes, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram", Name: path})
	must(t, err)
	defer func() { _ = notes.Close() }()
	t.Setenv("NOTIFY_SOCKET", path)
	t.Setenv("WATCHDOG_USEC", "60000")
	told := func(within time.Duration) string {
		must(t, notes.SetReadDeadline(time.Now().Add(within)))
		text := make([]byte, 64)
		n, _ := notes.Read(text)
		return string(text[:n])
	}
	s := start(t)
	if got := told(10 * time.Second); got != "READY=1" {
		t.Fatalf("systemd was told %q first", got)
	}
	for range 3 {
		if got := told(10 * time.Second); got != "WATCHDOG=1" {
			t.Fatalf("it serves, and systemd was told %q", got)
		}
	}
	serving := s.child()
	must(t, syscall.Kill(serving, syscall.SIGSTOP))
	defer func() { _ = syscall.Kill(serving, syscall.SIGCONT) }()
	for told(200*time.Millisecond) != "" { // what was on its way
	}
	if got := told(200 * time.Millisecond); got != "" {
		t.Errorf("it hangs, and systemd was told %q", got)
	}
	must(t, syscall.Kill(serving, syscall.SIGCONT))
	if got := told(10 * time.Second); got != "WATCHDOG=1" {
		t.Errorf("it serves again, and systemd was told %q", got)
	}
}
