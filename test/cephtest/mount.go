package cephtest

import (
	"context"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"gantry/internal/sleep"
)

// Mount mounts Folder as a client of which Key knows the secret, and returns where. The kernel checks who may do what, with
// the ids of user namespaces. The mount goes with the cluster; each call makes another. One whose session was ended fails for ever:
// with "client reconnect stale" it would also end sessions of its own when the metadata server starts again on the same port before
// the monitor has told of it, and the server would wait for it for 45 s, put it on the blocklist, and not answer it any more.
func (c *Cluster) Mount(ctx context.Context, client string) (string, error) {
	c.mu.Lock()
	c.mounts++
	name := fmt.Sprintf("fuse%d", c.mounts)
	key := c.keys[client]
	c.mu.Unlock()
	dir := c.path(name)
	text := fmt.Sprintf(`[global]
mon host = %s
keyring = %s.keyring
log file = %s.log
log to stderr = false
admin socket =
run dir = %s
crash dir = %s/crash
client mountpoint = %s
client fs = %s
client permissions = false
fuse default permissions = true
client mount timeout = 20
client shutdown timeout = 5
`, c.monitor(), dir, dir, c.dir, c.dir, Folder, FileSystem)
	err := os.WriteFile(dir+".conf", []byte(text), 0o600)
	if err == nil {
		err = os.WriteFile(dir+".keyring", fmt.Appendf(nil, "[client.%s]\n\tkey = %s\n", client, key), 0o600)
	}
	if err == nil {
		err = os.Mkdir(dir, 0o700)
	}
	if err == nil {
		err = c.launch(name, "ceph-fuse", "--conf", dir+".conf", "-f", "--name", "client."+client, dir)
	}
	if err == nil {
		err = c.mounted(ctx, name)
	}
	if err != nil {
		return "", fmt.Errorf("mount as %s: %w", client, err)
	}
	return dir, nil
}

// mounted waits until something is mounted on a folder of the cluster.
func (c *Cluster) mounted(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, toolTime)
	defer cancel()
	for {
		var st unix.Statx_t
		err := unix.Statx(unix.AT_FDCWD, c.path(name), unix.AT_SYMLINK_NOFOLLOW, unix.STATX_TYPE, &st)
		if err == nil && st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0 {
			return nil
		}
		if err := c.ended(name); err != nil {
			return c.explained(err)
		}
		if err := sleep.For(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
}
