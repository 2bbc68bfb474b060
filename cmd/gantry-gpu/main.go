//go:build cgo

// Command gantry-gpu reads the machine's NVIDIA GPUs for gantry-agent, which starts it and speaks to it on its
// standard input and output. It ends when its input does. The driver's library runs in here, and not in the agent.
package main

import (
	"encoding/json"
	"flag"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"gantry/agent/gpu/nvml"
	"gantry/agent/gpu/wire"
)

const lastTimeout = 3 * time.Second

func main() {
	var c nvml.Config
	flag.StringVar(&c.Library, "nvml", "", "path of libnvidia-ml.so.1; empty: that of the driver")
	flag.StringVar(&c.DriverRoot, "driver-root", "/", "folder below which the driver is installed")
	flag.StringVar(&c.DevRoot, "dev-root", "/", "folder below which its device nodes are")
	flag.Parse()
	c.DriverRoot, c.DevRoot = filepath.Clean(c.DriverRoot), filepath.Clean(c.DevRoot)
	c.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	if err := run(c); err != nil {
		c.Log.Error("gantry-gpu ends", "err", err)
		os.Exit(1)
	}
}

func run(c nvml.Config) error {
	lib, err := nvml.Open(c)
	if err != nil {
		if b, e := json.Marshal(wire.Reply{Error: err.Error()}); e == nil { // the agent shows it to operators
			_, _ = os.Stdout.Write(append(b, '\n'))
		}
		return err
	}
	return lib.Serve(untilEnd(os.Stdin), os.Stdout)
}

// untilEnd hands on what comes in. Soon after the input's end the process ends, even when it hangs in the driver.
func untilEnd(in io.Reader) io.Reader {
	r, w := io.Pipe()
	go func() {
		_, err := io.Copy(w, in)
		_ = w.CloseWithError(err)
		time.AfterFunc(lastTimeout, func() { os.Exit(1) })
	}()
	return r
}
