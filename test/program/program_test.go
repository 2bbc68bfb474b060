package program

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"testing"
)

func TestWhatWasWrittenRunsWhileOthersFork(t *testing.T) {
	for range 4 {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			for i := range 100 {
				path := filepath.Join(dir, fmt.Sprint(i))
				Write(t, path, "#!/bin/sh\nexit 0\n")
				if err := exec.CommandContext(t.Context(), path).Run(); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}
