package ctrd

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"gantry/agent/ctrd/ctrdtest"
)

// TestWhoHearsSIGTERM asks it of real processes: alone and not, with a handler, with the signal ignored.
func TestWhoHearsSIGTERM(t *testing.T) {
	b := setup(t)
	ref := b.local(nil)
	for args, deaf := range map[string]bool{
		"sleep 1000":                                        true,
		`sh -c "echo ready; read x < /dev/zero"`:            true,
		`sh -c "trap '' TERM; echo ready; exec sleep 1000"`: true,
		`sh -c "trap 'exit 0' TERM; echo ready; while true; do read x < /dev/zero; done"`: false,
		`sh -c "echo ready; sleep 1000; true"`:                                            false, // not alone
	} {
		s := b.spec(ref, args)
		b.start(s)
		var got bool
		err := ctrdtest.Eventually(time.Minute, func() error {
			// A shell is alone, and has no handler, before it has come to what it is asked about.
			if got = b.r.Deaf(s.Pod, b.look(s.Pod).PID); got != deaf {
				return fmt.Errorf("deaf: %v", got)
			}
			return nil
		})
		if err != nil {
			t.Errorf("%s: %v", args, err)
		}
		if b.r.Deaf(s.Pod, os.Getpid()) || b.r.Deaf("another", b.look(s.Pod).PID) {
			t.Errorf("%s: of another process or pod", args)
		}
		b.remove(s.Pod)
	}
}

// TestWhoWaitsForSIGTERM: a signal that any thread holds back may be asked for; what cannot be read is not deaf.
func TestWhoWaitsForSIGTERM(t *testing.T) {
	const none, term = "0000000000000000", "0000000000004000"
	for name, c := range map[string]struct {
		threads []string
		deaf    bool
	}{
		"no handler":      {[]string{"SigBlk:\t" + none + "\nSigIgn:\t" + term + "\nSigCgt:\t0000000180000002\n"}, true},
		"a handler":       {[]string{"SigBlk:\t" + none + "\nSigCgt:\t" + term + "\n"}, false},
		"blocked":         {[]string{"SigBlk:\t" + term + "\nSigCgt:\t" + none + "\n"}, false},
		"another thread":  {[]string{"SigBlk:\t" + none + "\nSigCgt:\t" + none + "\n", "SigBlk:\t" + term + "\nSigCgt:\t" + none + "\n"}, false},
		"half a status":   {[]string{"SigCgt:\t" + none + "\n"}, false},
		"no number":       {[]string{"SigBlk:\tx\nSigCgt:\t" + none + "\n"}, false},
		"nothing is left": {nil, false},
	} {
		dir := t.TempDir()
		for i, text := range c.threads {
			thread := filepath.Join(dir, "task", fmt.Sprint(i))
			must(t, os.MkdirAll(thread, 0o755))
			must(t, os.WriteFile(filepath.Join(thread, "status"), []byte(text), 0o644))
		}
		if got := deaf(dir); got != c.deaf {
			t.Errorf("%s: deaf %v", name, got)
		}
	}
}
