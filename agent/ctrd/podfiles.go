package ctrd

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"gantry/agent/containerfs"
	"gantry/agent/pod"
	"gantry/fleet"
	"gantry/internal/userns"
)

// writeFiles writes a pod's files into its root, which nothing runs in yet. They lie on the pod's own disk, so that its programs may
// change them, as the start scripts of images do. Links of the image are followed within the image's files alone.
func writeFiles(ctx context.Context, root string, s pod.ContainerSpec) error {
	if len(s.Files) == 0 {
		return nil
	}
	fd, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open the image: %w", err)
	}
	in := containerfs.NewRoot(os.NewFile(uintptr(fd), "root of a pod"), nil, nil).WithIDs(containerfs.ShiftedIDs(s.IDBase, userns.Size))
	defer func() { _ = in.Close() }()
	for _, f := range s.Files {
		err := writeFile(ctx, in, f)
		var known *fleet.Error
		if errors.As(err, &known) {
			return fatal("the image's files stand in the way of files that the pod gets: "+f.Path+": "+known.Msg, err)
		}
		if err != nil {
			return fmt.Errorf("write %s: %w", f.Path, err)
		}
	}
	return nil
}

// writeFile writes a file below the deepest folder of its path that is there, and makes the others.
func writeFile(ctx context.Context, root *containerfs.Root, f pod.File) error {
	for dir := path.Dir(f.Path); ; dir = path.Dir(dir) {
		to, err := root.Into(dir)
		if fleet.CodeOf(err) == fleet.CodeNotFound && dir != "/" {
			continue
		}
		if err != nil {
			return err
		}
		var archive bytes.Buffer
		w := tar.NewWriter(&archive)
		err = w.WriteHeader(&tar.Header{
			Typeflag: tar.TypeReg, Name: strings.TrimPrefix(strings.TrimPrefix(f.Path, dir), "/"), Mode: int64(f.Mode.Perm()), Size: int64(len(f.Text)),
			ModTime: time.Unix(0, 0),
		})
		if err == nil {
			_, err = w.Write(f.Text)
		}
		if err = errors.Join(err, w.Close()); err == nil {
			err = to.Unpack(ctx, &archive)
		}
		return errors.Join(err, to.Close())
	}
}
