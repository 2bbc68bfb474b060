package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"gantry/client"
	"gantry/client/archive"
)

type podCpCmd struct {
	Src string `arg:"" placeholder:"SRC" help:"What to copy: a path here, POD:/PATH, or - for a tar stream on standard input."`
	Dst string `arg:"" placeholder:"DST" help:"Where to: a path here, POD:/PATH, or - for a tar stream on standard output."`
}

// Run copies files.
func (cmd podCpCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	srcPod, srcPath, down := podPath(cmd.Src)
	dstPod, dstPath, up := podPath(cmd.Dst)
	switch {
	case down && up:
		return usage("copying from pod to pod goes through this machine: copy to a folder here first")
	case !down && !up:
		return usage("one of the two must be POD:/PATH, with an absolute path")
	}
	job := &copying{app: a, client: c}
	var err error
	if down {
		err = pods.on(ctx, c, srcPod, func(id string) error { return job.fetch(ctx, id, srcPath, cmd.Dst) })
	} else {
		err = pods.on(ctx, c, dstPod, func(id string) error { return job.send(ctx, id, cmd.Src, dstPath) })
	}
	if err == nil && job.left > 0 {
		err = &exitError{exitFailed, fmt.Errorf("%s left out; the rest was copied", count(job.left, "entry"))}
	}
	return err
}

// podPath splits POD:/PATH. A slash before the colon makes it a path of this machine.
func podPath(text string) (pod, p string, ok bool) {
	pod, p, ok = strings.Cut(text, ":/")
	if !ok || pod == "" || strings.Contains(pod, "/") {
		return "", "", false
	}
	return pod, "/" + p, true
}

// copying is one copy between this machine and a pod.
type copying struct {
	app    *app
	client *client.Client
	left   int // entries that were left out
}

func (j *copying) skipped(name, why string) {
	j.left++
	_, _ = fmt.Fprintf(j.app.err, "gantry: left out %s: %s\n", printable(name), why)
}

// notThere is a path that a pod does not have. It is no *client.Problem of status 404, which would mean the pod.
func notThere(p string) error {
	return &exitError{exitNotFound, fmt.Errorf("%s: no such file or folder in the pod", p)}
}

// contents reports whether a path means what is in a folder, and returns the folder.
func contents(p string) (string, bool) {
	if folder, ok := strings.CutSuffix(p, "/."); ok {
		return first(folder, "/"), true
	}
	return p, p == "/" || p == "."
}

// fetch copies from a pod to this machine.
func (j *copying) fetch(ctx context.Context, id, src, dst string) error {
	folder, inside := contents(src)
	folder = path.Clean(folder)
	stream, err := j.open(ctx, id, folder)
	if err != nil {
		return err
	}
	defer func() { _ = stream.Close() }()
	if dst == "-" {
		return archive.Copy(j.app.out, stream)
	}
	tree, err := archive.NewReader(stream)
	if err != nil {
		return err
	}
	if !tree.IsDir() && (inside || strings.HasSuffix(src, "/")) {
		return usage("%s is no folder", src)
	}
	parent, name, err := landing(dst, path.Base(folder), tree.IsDir(), inside)
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(parent)
	if err != nil {
		return usage("%v", err)
	}
	defer func() { _ = root.Close() }()
	return tree.Unpack(root, name, j.skipped)
}

// landing decides where on this machine a thing called base lands: a folder that is there, and the name in it. "." is
// the folder itself, which is made when it is not there.
func landing(dst, base string, dir, inside bool) (parent, name string, err error) {
	info, err := os.Stat(dst)
	switch {
	case err == nil && info.IsDir() && inside:
		return dst, ".", nil
	case err == nil && info.IsDir():
		return dst, base, nil
	case err == nil && dir:
		return "", "", usage("%s exists and is not a folder", dst)
	case err == nil && strings.HasSuffix(dst, "/"):
		return "", "", usage("%s is no folder", dst)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return "", "", usage("%v", err)
	case err != nil && !dir && strings.HasSuffix(dst, "/"):
		return "", "", usage("there is no folder %s", dst)
	}
	clean := filepath.Clean(dst)
	return filepath.Dir(clean), filepath.Base(clean), nil
}

// open reads a file or folder of a pod.
func (j *copying) open(ctx context.Context, id, p string) (io.ReadCloser, error) {
	stream, err := j.client.ReadFiles(ctx, id, p)
	if client.IsNotFound(err) {
		if _, podErr := j.client.Pod(ctx, id); podErr != nil {
			return nil, podErr
		}
		return nil, notThere(p)
	}
	return stream, err
}

// kind tells what a path of a pod is.
type kind int

const (
	kindNone kind = iota
	kindFile
	kindFolder
)

// look finds out what a path of a pod is, by the first bytes of a copy.
func (j *copying) look(ctx context.Context, id, p string) (kind, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := j.open(ctx, id, p)
	var own *exitError
	if errors.As(err, &own) && own.code == exitNotFound {
		return kindNone, nil
	}
	if err != nil {
		return kindNone, err
	}
	defer func() { _ = stream.Close() }()
	tree, err := archive.NewReader(stream)
	switch {
	case err != nil:
		return kindNone, err
	case tree.IsDir():
		return kindFolder, nil
	}
	return kindFile, nil
}

// send copies from this machine to a pod.
func (j *copying) send(ctx context.Context, id, src, dst string) error {
	if src == "-" {
		in, err := j.app.stdinBody()
		if err != nil {
			return err
		}
		return j.write(ctx, id, path.Clean(dst), in)
	}
	info, err := os.Stat(src)
	if err != nil {
		return usage("%v", err)
	}
	_, inside := contents(filepath.ToSlash(src))
	switch {
	case inside && !info.IsDir(), strings.HasSuffix(src, "/") && !info.IsDir():
		return usage("%s is no folder", src)
	}
	base, err := localBase(src)
	if err != nil {
		return err
	}
	there, err := j.look(ctx, id, path.Clean(dst))
	if err != nil {
		return err
	}
	parent, name, err := podLanding(dst, base, there, info.IsDir(), inside)
	if err != nil {
		return err
	}
	return j.pack(ctx, id, src, parent, name)
}

// localBase is the name of what a path means, also where that ends in ".".
func localBase(p string) (string, error) {
	full, err := filepath.Abs(p)
	if err != nil {
		return "", usage("%v", err)
	}
	return filepath.Base(full), nil
}

// podLanding decides where in a pod a thing called base lands, as landing does here.
func podLanding(dst, base string, there kind, dir, inside bool) (parent, name string, err error) {
	clean := path.Clean(dst)
	switch {
	case there == kindFolder && inside:
		return clean, ".", nil
	case there == kindFolder:
		return clean, base, nil
	case there == kindFile && (dir || strings.HasSuffix(dst, "/")):
		return "", "", usage("%s is there in the pod and is no folder", dst)
	case there == kindNone && !dir && strings.HasSuffix(dst, "/"):
		return "", "", usage("there is no folder %s in the pod", dst)
	}
	return path.Dir(clean), path.Base(clean), nil
}

// pack sends a file or folder below a folder of a pod.
func (j *copying) pack(ctx context.Context, id, src, parent, name string) error {
	in, out := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		err := archive.Pack(out, src, name, j.skipped)
		_ = out.CloseWithError(err)
		packed <- err
	}()
	err := j.write(ctx, id, parent, in)
	_ = in.Close() // so that the packing ends, whatever became of the request
	packErr := <-packed
	var gone *client.Unreachable
	switch {
	case err != nil && !errors.As(err, &gone):
		return err
	case packErr != nil && !errors.Is(packErr, io.ErrClosedPipe):
		return packErr // the cause of what became of the request
	}
	return err
}

// write unpacks a tar stream below a folder of a pod.
func (j *copying) write(ctx context.Context, id, dir string, tar io.ReadCloser) error {
	err := j.client.WriteFiles(ctx, id, dir, tar)
	if client.IsNotFound(err) {
		if _, podErr := j.client.Pod(ctx, id); podErr != nil {
			return podErr
		}
		return notThere(dir)
	}
	return err
}
