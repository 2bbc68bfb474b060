package gpu

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"gantry/test/fakenvml"
)

var helperPath string // of gantry-gpu, built for these tests

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "gantry-gpu")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	defer fakenvml.Remove()
	if helperPath, err = fakenvml.BuildHelper(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := m.Run()
	if err := goleak.Find(); code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}
