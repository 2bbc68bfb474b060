package volume

import (
	"context"
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"gantry/internal/ipc"
	"gantry/storage/helper"
)

// Sentences for the owners of pods.
const (
	sentenceNotReady  = "the network volume is being prepared; the pod starts by itself once it is there"
	sentenceDead      = "the storage of the network volume does not answer; the pod starts by itself once it does"
	sentenceRefused   = "the storage of the network volume refuses this host; its operator has to renew the access"
	sentenceMarker    = "the storage of the network volume is not the one that was set up; its operator has to look at it"
	sentenceDirectory = "the directory of the network volume is not there; the operator has to look at its storage"
	sentenceDisk      = "the network volume is not there yet on its storage host; the pod starts by itself once it is"
	sentenceCannot    = "this host cannot mount the storage of the network volume; the operator has to install what it needs"
	sentenceOrder     = "the host does not take what the order says of the network volume; the operator has to look at it"
	sentenceOther     = "the network volume could not be mounted; it is tried again"
)

var (
	deadErrnos = []error{
		helper.ErrStuck, helper.ErrTooManyStuck, unix.ETIMEDOUT, unix.EHOSTUNREACH, unix.EHOSTDOWN, unix.ENETUNREACH, unix.ENETDOWN,
		unix.ECONNREFUSED, unix.ECONNRESET,
	}
	refusedErrnos = []error{unix.EACCES, unix.EPERM, unix.EKEYREJECTED, unix.EKEYREVOKED, unix.EKEYEXPIRED}
	brokenErrnos  = []error{unix.ESTALE, unix.ENOTCONN, unix.EIO, unix.ESHUTDOWN, unix.ECONNABORTED, unix.ENXIO}
)

func isAny(err error, list []error) bool {
	return slices.ContainsFunc(list, func(e error) bool { return errors.Is(err, e) })
}

// dead reports whether the server did not answer: it may do so again by itself.
func dead(err error) bool { return isAny(err, deadErrnos) }

// broken reports whether the mount will never be good again, so that a new one is needed.
func broken(err error) bool {
	return ipc.Kind(err) == kindMarker || isAny(err, refusedErrnos) || isAny(err, brokenErrnos)
}

// sentence tells a pod's owner what an error means for him.
func sentence(err error) string {
	switch {
	case ipc.Kind(err) == kindMarker:
		return sentenceMarker
	case ipc.Kind(err) == kindDirectory:
		return sentenceDirectory
	case ipc.Kind(err) == kindDisk:
		return sentenceDisk
	case dead(err), errors.Is(err, context.DeadlineExceeded):
		return sentenceDead
	case isAny(err, refusedErrnos):
		return sentenceRefused
	case errors.Is(err, unix.ENODEV):
		return sentenceCannot
	}
	return sentenceOther
}
