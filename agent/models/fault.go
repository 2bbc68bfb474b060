package models

import (
	"crypto/x509"
	"errors"
	"fmt"
	"syscall"

	"gantry/agent/pod"
	"gantry/fleet"
	"gantry/internal/outbound"
)

// again reports whether another try may help.
func again(err error) bool {
	for _, passing := range []error{errAway, errStalled, errSlow, errShort} {
		if errors.Is(err, passing) && !untrusted(err) {
			return true
		}
	}
	return false
}

// untrusted reports whether a server has a certificate that this host does not trust.
func untrusted(err error) bool {
	var unknown x509.UnknownAuthorityError
	var wrong x509.HostnameError
	var bad x509.CertificateInvalidError
	return errors.As(err, &unknown) || errors.As(err, &wrong) || errors.As(err, &bad)
}

// sentence classes why a model cannot be had, and says it to the pod's owner. size is that of the cache.
func sentence(ref fleet.ModelRef, token bool, size int64, err error) error {
	class, words := pod.Retry, ""
	switch {
	case untrusted(err):
		class, words = pod.Fatal, "the model hub has a certificate that this host does not trust"
	case errors.Is(err, errDenied), errors.Is(err, errNotThere):
		class, words = pod.Fatal, "is not on the hub in that revision, or may not be read: if it is private or gated, set HF_TOKEN in the endpoint's environment"
		if token {
			words = "is not on the hub in that revision, or may not be read with the endpoint's HF_TOKEN"
		}
	case errors.Is(err, errTooLarge):
		class, words = pod.Fatal, fmt.Sprintf("does not fit into the host's cache of %.1f GB", float64(size)/float64(fleet.GB))
	case errors.Is(err, errDigest):
		class, words = pod.Fatal, "is not what its digests promise"
	case errors.Is(err, errAnswer):
		class, words = pod.Fatal, "cannot be fetched: "+err.Error()
	case errors.Is(err, outbound.ErrRefused), errors.Is(err, errInsecure):
		class, words = pod.Fatal, "is at an address that is not allowed"
	case errors.Is(err, errStatus):
		class, words = pod.Fatal, "cannot be fetched: "+err.Error()
	case errors.Is(err, errNoRoom), errors.Is(err, syscall.ENOSPC):
		words = "has no room in the host's cache, which other pods' models fill"
	case errors.Is(err, errStalled):
		words = "does not arrive: the hub stopped sending"
	case errors.Is(err, errSlow):
		words = "does not arrive: the hub is too slow"
	case errors.Is(err, errShort):
		words = "does not arrive: the hub broke off"
	case errors.Is(err, errAway):
		words = "does not arrive: the hub does not answer"
	default:
		words = "could not be fetched"
	}
	return &pod.Error{Class: class, Sentence: "model " + ref.Repo + ":" + ref.Revision + " " + words, Err: err}
}
