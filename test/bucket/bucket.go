// Package bucket serves a bucket of S3 for tests: the product's own server in front of a folder.
package bucket

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"net/http/httptest"
	"os"
	"testing"

	"gantry/storage/s3"
)

// How the bucket is reached.
const (
	Region    = "EU-RO-1"
	Name      = "vol1"
	AccessKey = "user_results"
	Secret    = "rps_secret" //nolint:gosec // of tests
)

// folder is the source of the one bucket.
type folder struct{ dir string }

// Access implements s3.Source.
func (folder) Access(_ context.Context, key, date string) (s3.Access, error) {
	if key != AccessKey {
		return s3.Access{}, s3.ErrNoKey
	}
	signing := []byte("AWS4" + Secret)
	for _, part := range []string{date, Region, "s3", "aws4_request"} {
		mac := hmac.New(sha256.New, signing)
		mac.Write([]byte(part))
		signing = mac.Sum(nil)
	}
	return s3.Access{Account: "acc1", SigningKey: signing, Volumes: []s3.Volume{{ID: Name}}}, nil
}

// Open implements s3.Source.
func (f folder) Open(context.Context, string, string) (*s3.Folder, error) {
	root, err := os.OpenRoot(f.dir)
	if err != nil {
		return nil, err
	}
	return &s3.Folder{Root: root, Release: func() { _ = root.Close() }}, nil
}

// Serve serves an empty bucket until the test ends, and returns the server's URL and the bucket's folder.
func Serve(t testing.TB) (url, dir string) {
	t.Helper()
	dir = t.TempDir()
	server := httptest.NewServer(s3.New(s3.Config{Source: folder{dir}, Region: Region}))
	t.Cleanup(server.Close)
	return server.URL, dir
}
