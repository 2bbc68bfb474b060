// Package program lays down programs that tests run.
package program

import (
	"os"
	"syscall"
	"testing"
)

// Write lays down a program at path, such as a shell script. It can be run at once: while the file is
// open for writing this process forks no other, which would hold it open for a moment more, and for
// as long Linux runs no such file (ETXTBSY, execve(2)).
func Write(tb testing.TB, path, text string) {
	tb.Helper()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil { //nolint:gosec // a program
		tb.Fatal(err)
	}
}
