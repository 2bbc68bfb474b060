//go:build cgo

package nvml

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"

	"github.com/NVIDIA/go-nvlib/pkg/nvlib/device"
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gantry/agent/gpu/wire"
)

// Config says where the driver is.
type Config struct {
	Library    string // path of libnvidia-ml.so.1; empty: looked for below DriverRoot
	DriverRoot string
	DevRoot    string
	Log        *slog.Logger
}

// Library is NVIDIA's library, loaded and initialised. Its methods are for one goroutine, but for those of events.
type Library struct {
	Config
	lib     nvml.Interface
	devices device.Interface
	watch   *watch
}

// Open loads the library.
func Open(c Config) (*Library, error) {
	var opts []nvml.LibraryOption
	if path := c.library(); path != "" {
		opts = append(opts, nvml.WithLibraryPath(path))
	}
	lib := nvml.New(opts...)
	switch ret := lib.Init(); ret {
	case nvml.SUCCESS:
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		return nil, errors.New("libnvidia-ml.so.1 was not found")
	default:
		return nil, fmt.Errorf("initialise NVML: %s", ret.Error())
	}
	return &Library{Config: c, lib: lib, devices: device.New(lib), watch: newWatch(lib)}, nil
}

// Serve answers the requests of r on w until r ends. Events go to w in between.
func (l *Library) Serve(r io.Reader, w io.Writer) error {
	out := &lines{w: w}
	end := make(chan struct{})
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(end)
	l.watch.register(l.handles())
	wg.Go(func() { l.watch.run(end, func(e wire.Event) { _ = out.write(wire.Reply{Event: &e}) }) })
	in := bufio.NewScanner(r)
	in.Buffer(make([]byte, 0, 4096), wire.MaxRequest)
	for in.Scan() {
		var req wire.Request
		if err := json.Unmarshal(in.Bytes(), &req); err != nil {
			return fmt.Errorf("read a request: %w", err)
		}
		if err := out.write(l.answer(req)); err != nil {
			return fmt.Errorf("answer: %w", err)
		}
	}
	if err := in.Err(); err != nil {
		return fmt.Errorf("read requests: %w", err)
	}
	return nil
}

func (l *Library) answer(req wire.Request) wire.Reply {
	reply := wire.Reply{ID: req.ID}
	var err error
	switch req.Ask {
	case wire.AskInventory:
		reply.Inventory, err = l.inventory()
	case wire.AskUse:
		reply.Use = l.use()
	case wire.AskHolders:
		reply.Holders, err = l.holders(req.UUIDs)
	case wire.AskSpec:
		reply.Spec, err = l.spec(req.UUIDs)
	default:
		err = errors.New("this question is not known")
	}
	if err != nil {
		reply.Error = err.Error()
	}
	return reply
}

// lines writes replies, each on a line, from several goroutines.
type lines struct {
	mu sync.Mutex // guards w
	w  io.Writer
}

func (l *lines) write(r wire.Reply) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	_, err = l.w.Write(append(b, '\n'))
	return err
}
