package ctrd

import (
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	remoteerrors "github.com/containerd/containerd/v2/core/remotes/errors"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"

	"gantry/agent/pod"
	"gantry/internal/outbound"
)

// denied reports whether the registry, or who gives out its tokens, let the pull not in.
func denied(err error) bool {
	var status remoteerrors.ErrUnexpectedStatus
	if errors.As(err, &status) {
		return status.StatusCode == http.StatusUnauthorized || status.StatusCode == http.StatusForbidden
	}
	return errors.Is(err, docker.ErrInvalidAuthorization)
}

func rangeRefused(err error) bool {
	var status remoteerrors.ErrUnexpectedStatus
	return errors.As(err, &status) && status.StatusCode == http.StatusRequestedRangeNotSatisfiable
}

// final reports whether trying again cannot help.
func final(err error) bool {
	var e *pod.Error
	return errors.As(pullFault("", err), &e) && e.Class == pod.Fatal
}

// pullFault classes the error of a pull and names the image, never the address that failed: it may
// hold a token.
func pullFault(ref string, err error) error {
	if err == nil {
		return nil
	}
	class, words := classifyPull(err)
	var e *pod.Error
	if errors.As(err, &e) {
		return e
	}
	cause := withoutAddress(err)
	if notThere(err) {
		cause = fmt.Errorf("%w: %w", pod.ErrNotInRegistry, cause)
	}
	return &pod.Error{Class: class, Sentence: fmt.Sprintf(words, "image "+shown(ref)), Err: cause}
}

// notThere reports whether the registry said that it has no such image. Some say to who may not read it that they
// do not let him in instead.
func notThere(err error) bool {
	var status remoteerrors.ErrUnexpectedStatus
	if errors.As(err, &status) {
		return status.StatusCode == http.StatusNotFound
	}
	return errors.Is(err, errResolve) && errdefs.IsNotFound(err)
}

func classifyPull(err error) (pod.Class, string) {
	var status remoteerrors.ErrUnexpectedStatus
	var unknownCA x509.UnknownAuthorityError
	var wrongHost x509.HostnameError
	var badCert x509.CertificateInvalidError
	text := err.Error()
	switch {
	case errors.Is(err, errStalled):
		return pod.Retry, "the registry of %s stopped sending"
	case errors.Is(err, errSlow):
		return pod.Retry, "the registry of %s is too slow"
	case errors.Is(err, errTooLarge):
		return pod.Fatal, "%s is larger than this host allows"
	case errors.Is(err, errCredential):
		return pod.Fatal, "the registry refused the credentials for %s"
	case errors.Is(err, outbound.ErrRefused), errors.Is(err, errInsecure), errors.Is(err, errElsewhere):
		return pod.Fatal, "the registry of %s leads to an address that is not allowed"
	case errors.As(err, &status):
		return classifyStatus(status.StatusCode)
	case errors.Is(err, docker.ErrInvalidAuthorization):
		return pod.Fatal, notLetIn
	case strings.Contains(text, "no match for platform"):
		return pod.Fatal, "%s has no version for this host's platform, " + platforms.DefaultString()
	case errors.As(err, &unknownCA), errors.As(err, &wrongHost), errors.As(err, &badCert):
		return pod.Fatal, "the registry of %s has a certificate that this host does not trust"
	case strings.Contains(text, "server gave HTTP response to HTTPS client"):
		return pod.Fatal, "the registry of %s does not speak HTTPS"
	case errors.Is(err, errResolve) && errdefs.IsNotFound(err):
		return pod.Fatal, notReadable
	case strings.Contains(text, "could not fetch content descriptor"), strings.Contains(text, "failed open") && errdefs.IsNotFound(err):
		return pod.Fatal, "%s is incomplete in its registry"
	case errors.Is(err, errNotPromised), strings.Contains(text, "unexpected commit digest"), strings.Contains(text, "read past expected size"),
		strings.Contains(text, "read exceeds expected size"), strings.Contains(text, "unexpected digest"):
		return pod.Fatal, "%s is not what its digest promises"
	case errors.Is(err, io.ErrUnexpectedEOF):
		return pod.Retry, "the registry of %s broke off"
	case errors.Is(err, errNoRoom), strings.Contains(text, "no space left on device"):
		return pod.Retry, "the host has no room for %s"
	case away(err) && !fromRegistry(err):
		return pod.Retry, sentenceAway + "%.0s"
	case strings.Contains(text, "failed to extract layer"), strings.Contains(text, "failed to apply layer"), strings.Contains(text, "wrong diff id"),
		strings.Contains(text, "number of layers and diffIDs don't match"):
		return pod.Fatal, "%s cannot be unpacked"
	case errors.Is(err, errResolve), fromRegistry(err):
		return pod.Retry, "the registry of %s cannot be reached"
	}
	return pod.Retry, "%s could not be pulled"
}

const (
	notReadable = "%s does not exist in its registry or may not be read"
	// notLetIn is for pulls without a credential; see errCredential.
	notLetIn = notReadable + "; if it is private, give the pod a registry credential (--registry)"
)

func classifyStatus(code int) (pod.Class, string) {
	switch {
	case code == http.StatusUnauthorized, code == http.StatusForbidden:
		return pod.Fatal, notLetIn
	case code == http.StatusNotFound:
		return pod.Fatal, notReadable
	case code == http.StatusRequestedRangeNotSatisfiable:
		return pod.Retry, "%s could not be pulled in parts"
	case code == http.StatusTooManyRequests:
		return pod.Retry, "the registry of %s asks for patience"
	case code >= 500, code == http.StatusRequestTimeout:
		return pod.Retry, fmt.Sprintf("the registry of %%s answers with status %d", code)
	}
	return pod.Fatal, fmt.Sprintf("the registry of %%s refuses it with status %d", code)
}

func fromRegistry(err error) bool {
	var u *url.Error
	return errors.As(err, &u) || errors.Is(err, errResolve)
}

// withoutAddress keeps the cause of an HTTP error and drops its address.
func withoutAddress(err error) error {
	var status remoteerrors.ErrUnexpectedStatus
	if errors.As(err, &status) {
		return fmt.Errorf("registry answered %s", status.Status)
	}
	var u *url.Error
	if errors.As(err, &u) {
		return fmt.Errorf("%s: %w", u.Op, u.Err)
	}
	return err
}
