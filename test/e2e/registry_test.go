package e2e

import (
	"net/http/httptest"
	"strings"
	"testing"

	goreg "github.com/google/go-containerregistry/pkg/registry"
)

// registry starts an empty image registry on loopback and returns its address.
func registry(t *testing.T) string {
	t.Helper()
	s := httptest.NewServer(goreg.New())
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}
