package main

import (
	"fmt"
	"log/slog"
	"maps"
	"os"

	"gantry/agent"
	"gantry/agent/containerfs"
	"gantry/agent/s3"
	"gantry/agent/storage"
	"gantry/agent/volumes"
	"gantry/storage/helper"
	"gantry/storage/volume"
)

var (
	_ volumes.Mounts      = (*volume.Host)(nil)
	_ storage.Provisioner = (*storage.Helpers)(nil)
)

// Hidden commands of processes for file system calls which may never return: those of storage, and those for files of pods.
const (
	helperCommand = "storage-helper"
	filesCommand  = "files-helper"
)

// itself is this program, also after its file was replaced.
const itself = "/proc/self/exe"

// filesProgram reads and writes files of pods.
var filesProgram = &containerfs.Program{Argv: []string{itself, filesCommand}}

// helps makes this process such a one when it was started as that, and reports its exit status.
func helps(args []string) (status int, yes bool) {
	switch {
	case len(args) == 2 && args[1] == filesCommand:
		return containerfs.Main(), true
	case len(args) == 2 && args[1] == helperCommand:
		funcs := volume.HelperFuncs()
		maps.Copy(funcs, storage.HelperFuncs())
		return helper.Main(funcs), true
	}
	return 0, false
}

// networkVolumes are those of the host, and what works for them.
type networkVolumes struct {
	host   *volume.Host
	caller *helper.Caller
}

// networkVolumes opens what mounts network volumes.
func (c *common) networkVolumes(log *slog.Logger) (*networkVolumes, error) {
	caller := &helper.Caller{Argv: []string{itself, helperCommand}, Log: log}
	host, err := volume.New(volume.Config{RunDir: c.runDir(), Caller: caller, Log: log})
	if err != nil {
		return nil, fmt.Errorf("open network volumes: %w", err)
	}
	return &networkVolumes{host, caller}, nil
}

func (v *networkVolumes) configure(c *agent.Config) {
	c.Volumes = v.host
	c.Provisioner = &storage.Helpers{Caller: v.caller, Root: v.host.Root}
}

func (v *networkVolumes) close() { v.caller.Close() }

// runDir is the folder of what is mounted, and gone after a restart of the host.
func (c *common) runDir() string { return "/run/gantry-" + c.instance() }

// s3Socket is where gantry-s3 of this host asks; it finds the same name.
func (c *common) s3Socket() string { return c.runDir() + "/s3/agent.sock" }

// dropRunDir removes the folder when nothing is in it any more.
func (c *common) dropRunDir() {
	s3.Drop(c.s3Socket())
	_ = os.Remove(c.runDir())
}
