package dev

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"gantry/internal/atomicfile"
)

// containerdConfig is a configuration that 1.x and 2.x daemons both read. Plugins that reach outside the folder, or
// that nothing here uses, are off: the Kubernetes ones, and the resource interface with its socket of a fixed name.
const containerdConfig = `version = 2
root = %s
state = %s
oom_score = 0
disabled_plugins = [
  "io.containerd.grpc.v1.cri",
  "io.containerd.cri.v1.images",
  "io.containerd.cri.v1.runtime",
  "io.containerd.nri.v1.nri",
]

[grpc]
  address = %s

[debug]
  address = ""
  level = "info"

[metrics]
  address = ""

[plugins."io.containerd.internal.v1.opt"]
  path = %s
`

// runtimeDir is a folder with a short path: the name of a unix socket has at most 107 bytes, and shims make theirs
// below it. It is named after the data folder.
func (d *dev) runtimeDir() string {
	sum := sha256.Sum256([]byte(d.cfg.DataDir))
	return filepath.Join(d.cfg.tune.runRoot, "gantry-"+hex.EncodeToString(sum[:4]))
}

// containerdSocket is the socket of the containerd that the agent uses.
func (d *dev) containerdSocket() string {
	if d.cfg.Containerd != "" {
		return d.cfg.Containerd
	}
	return filepath.Join(d.runtimeDir(), "containerd.sock")
}

// startContainerd starts the private containerd.
func (d *dev) startContainerd(ctx context.Context) error {
	dir := d.runtimeDir()
	for _, path := range []string{dir, d.folder.path("containerd")} {
		if err := os.MkdirAll(path, 0o711); err != nil {
			return fmt.Errorf("containerd: %w", err)
		}
	}
	config := d.folder.path("containerd", "config.toml")
	text := fmt.Sprintf(containerdConfig, strconv.Quote(d.folder.path("containerd", "root")),
		strconv.Quote(filepath.Join(dir, "state")), strconv.Quote(d.containerdSocket()),
		strconv.Quote(d.folder.path("containerd", "opt")))
	if err := atomicfile.Write(config, []byte(text), 0o600); err != nil {
		return fmt.Errorf("containerd: %w", err)
	}
	d.containerd = d.child(part{roleContainerd, 1}, d.cfg.Binaries.Containerd, "--config", config)
	d.containerd.start(ctx)
	return nil
}

func (d *dev) containerdAnswers(ctx context.Context) error {
	dialer := net.Dialer{}
	conn, err := dialer.DialContext(ctx, "unix", d.containerdSocket())
	if err != nil {
		return err
	}
	return conn.Close()
}
