package pod

import (
	"errors"
	"fmt"
	"strings"
)

// ErrNotInRegistry is in the chain of a Pull's error when the registry answered that it does not have the image.
var ErrNotInRegistry = errors.New("not in its registry")

// imageOf is the reference of the very image that the order wants: once a digest is pinned, what a tag names now
// does not matter.
func imageOf(want Assignment) string {
	if want.Digest == "" {
		return want.Image
	}
	name, _, _ := strings.Cut(want.Image, "@")
	return name + "@" + want.Digest
}

// pinLost says what the owner can do when the registry does not have the pinned image any more.
func pinLost(err error, want Assignment) error {
	var e *Error
	if want.Digest == "" || !errors.As(err, &e) || !errors.Is(err, ErrNotInRegistry) {
		return err
	}
	return &Error{Class: e.Class, Err: e.Err, Sentence: fmt.Sprintf(
		"the registry no longer has image %s as this pod was made from it (%s); change the pod's image to start it from another", want.Image, want.Digest)}
}
