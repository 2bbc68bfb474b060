package ctrd

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	"gantry/agent/pod"
	"gantry/fleet"
)

const sentenceAway = "the container runtime of the host does not answer"

// native turns an error of a raw service into one that errdefs can class.
func native(err error) error {
	if err == nil {
		return nil
	}
	return errgrpc.ToNative(err)
}

// fault classes an error of the daemon. Nothing that the daemon says by itself is final for a pod:
// callers recognise final errors before they come here. did completes "the runtime could not …".
func fault(did string, err error) error {
	if err == nil {
		return nil
	}
	var e *pod.Error
	if errors.As(err, &e) {
		return err
	}
	if away(err) {
		return &pod.Error{Class: pod.Retry, Sentence: sentenceAway, Err: err}
	}
	return &pod.Error{Class: pod.Retry, Sentence: "the container runtime of the host could not " + did, Err: err}
}

// away reports whether err tells of an unreachable daemon or an ended wait instead of an answer.
func away(err error) bool {
	return errdefs.IsUnavailable(err) || errdefs.IsCanceled(err) || errdefs.IsDeadlineExceeded(err) ||
		errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

func fatal(sentence string, err error) error {
	return &pod.Error{Class: pod.Fatal, Sentence: sentence, Err: err}
}

// runc tells why it could not make a process only in words.
var runcExec = regexp.MustCompile(`exec: \\?"((?:[^"\\]|\\.)*?)\\?": (.*)`)

// runcTarget finds the path in the container of a mount that runc could not make.
var runcTarget = regexp.MustCompile(`to rootfs at \\?"(/[^"\\]*)`)

// runcMkdir is how runc says that it could not make the working directory.
var runcMkdir = regexp.MustCompile(`container init: mkdir /\S*: not a directory`)

// mountFailed reports whether what is in the image made a mount impossible.
func mountFailed(text string) bool {
	if strings.Contains(text, "error reopening /dev/null") {
		return true // the pod's mount lies over /dev: a link in the image led there
	}
	return strings.Contains(text, "error mounting") && slices.ContainsFunc([]string{
		"not a directory", "is a directory", "too many levels of symbolic links", "because it is inside /proc", "change mount propagation",
	}, func(why string) bool { return strings.Contains(text, why) })
}

func mountSentence(text string) string {
	if m := runcTarget.FindStringSubmatch(text); m != nil && fleet.IsSystemPath(m[1]) {
		return "the image's files stand in the way of files that every container gets"
	}
	return "the image's files stand in the way of the pod's mount"
}

// createFault classes an error of making or starting a container's process.
func createFault(err error) error {
	if away(err) {
		return fault("create the process", err)
	}
	text := err.Error()
	if m := runcExec.FindStringSubmatch(text); m != nil {
		command := m[1]
		if len(command) > 100 {
			command = strings.ToValidUTF8(command[:100], "") + "…"
		}
		switch {
		case strings.Contains(m[2], "executable file not found"), strings.Contains(m[2], "no such file"):
			return fatal(`command "`+command+`" was not found in the image`, err)
		case strings.Contains(m[2], "permission denied"), strings.Contains(m[2], "is a directory"):
			return fatal(`command "`+command+`" of the image may not be executed`, err)
		}
	}
	switch {
	case strings.Contains(text, "OOM-killed"):
		return fatal("the pod's memory limit is too small to start its container", err)
	case strings.Contains(text, "chdir to cwd"), strings.Contains(text, "mkdir cwd"), runcMkdir.MatchString(text):
		return fatal("the working directory that the image names cannot be entered", err)
	case strings.Contains(text, "unable to setup user"), strings.Contains(text, "to unmapped user in user namespace"):
		return fatal("the user or group that the image names is not among the ids that a container has", err)
	case strings.Contains(text, "must be mounted on ordinary directory"), strings.Contains(text, "error setting up ptmx"):
		return fatal("the image has a link or a file in place of /proc, /sys or /dev", err)
	case mountFailed(text):
		return fatal(mountSentence(text), err)
	case strings.Contains(text, "seccomp"):
		return &pod.Error{Class: pod.Retry, Sentence: "the host's runc cannot apply the seccomp profile", Err: err}
	}
	return fault("create the process", err)
}
