// Package files keeps the files of results of public models for seven days: in a bucket of S3 that the operator names, behind signed
// URLs that every scheduler serves. Room is taken in the state before a file is put into the bucket, so that what a crash leaves there
// is found, and the leader deletes what has expired. Without a bucket files stay in results, as workers sent them.
package files

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"gantry/fleet"
	"gantry/internal/objects"
	"gantry/internal/pki"
	"gantry/internal/sleep"
	"gantry/scheduler/entry"
	"gantry/scheduler/state"
	"gantry/serverless/queue"
	"gantry/serverless/result"
)

const (
	purposeSecret = "object storage"
	purposeURL    = "file of a result"
	tries         = 3 // of putting a file
	again         = time.Second
	calling       = time.Minute // the most that one request of the storage takes
	swept         = 100         // files in one command
	every         = 10 * time.Second
)

// Proposer commits commands; see replica.Node.
type Proposer interface {
	Propose(ctx context.Context, cmds ...state.Command) ([]entry.Result, error)
}

// Config is what Files are made from.
type Config struct {
	Store  *state.Store
	Node   Proposer
	Sealer *pki.Sealer
	URL    string // of the API, as users reach it
	HTTP   *http.Client
	Log    *slog.Logger
	Now    func() time.Time
}

// Files are those of all results. Its methods are safe for concurrent use.
type Files struct {
	Config
	client objects.Client
}

// New returns Files. The requests of the storage are signed by the clock of the machine, as servers check it.
func New(c Config) *Files { return &Files{c, objects.Client{HTTP: c.HTTP, Now: time.Now}} }

// NewHTTP returns a client for the storage, which follows no redirect.
func NewHTTP() *http.Client {
	return &http.Client{
		Transport:     &http.Transport{MaxIdleConnsPerHost: 16, IdleConnTimeout: time.Minute, ResponseHeaderTimeout: calling / 2},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// Close ends connections that nobody uses.
func (f *Files) Close() { f.HTTP.CloseIdleConnections() }

// Seal checks a store, and seals the secret of its access key into it. Errors: invalid.
func Seal(sealer *pki.Sealer, s *fleet.ObjectStore, secret fleet.Secret) (err error) {
	b := bucketOf(s, secret)
	if err := b.Check(); err != nil {
		return err
	}
	s.Sealed, err = sealer.Seal(purposeSecret, []byte(secret.Reveal()))
	return err
}

func bucketOf(s *fleet.ObjectStore, secret fleet.Secret) objects.Bucket {
	return objects.Bucket{Endpoint: s.Endpoint, Region: s.Region, Name: s.Bucket, Prefix: s.Prefix, AccessKey: s.AccessKey, Secret: secret}
}

// bucket returns where files are; nil: nowhere.
func (f *Files) bucket() (*objects.Bucket, error) {
	var store fleet.ObjectStoreView
	var ok bool
	if err := f.Store.View(func(v *state.View) error { store, ok = v.ObjectStore(); return nil }); err != nil || !ok {
		return nil, err
	}
	secret, err := OpenSecret(f.Sealer, &store.ObjectStore)
	b := bucketOf(&store.ObjectStore, secret)
	return &b, err
}

// OpenSecret opens the secret of a store's access key.
func OpenSecret(sealer *pki.Sealer, s *fleet.ObjectStore) (fleet.Secret, error) {
	secret, err := sealer.Open(purposeSecret, s.Sealed)
	if err != nil {
		return "", fmt.Errorf("open the secret of the object storage: %w", err)
	}
	return fleet.Secret(secret), nil
}

// Result puts the files of an output into the store, and their URLs in their places. Errors: invalid (they cannot be kept), rate_limited
// (there is no room for them).
func (f *Files) Result(ctx context.Context, sale *queue.Sale, output []byte) ([]byte, error) {
	b, err := f.bucket()
	if err != nil || b == nil {
		return output, err
	}
	return result.WithFiles(output, func(files []result.File) ([]string, error) { return f.keep(ctx, b, sale.Account, files) })
}

func (f *Files) keep(ctx context.Context, b *objects.Bucket, account fleet.AccountID, files []result.File) (urls []string, err error) {
	expires := f.Now().Add(fleet.FileLife).Truncate(time.Second)
	kept := make([]fleet.ResultFile, len(files))
	for i, file := range files {
		kept[i] = fleet.ResultFile{
			ID: strings.ToLower(rand.Text()) + extension(file.Type), Account: account, Bytes: int64(len(file.Data)), Expires: expires,
		}
	}
	if err := f.commit(ctx, state.KeepFiles{Files: kept}); err != nil {
		return nil, err
	}
	for i, file := range files {
		if err := f.put(ctx, b, &kept[i], file); err != nil {
			return nil, err
		}
		url, err := f.urlOf(&kept[i])
		if err != nil {
			return nil, err
		}
		urls = append(urls, url)
	}
	return urls, nil
}

// put writes a file, and tries again where the storage does not take it.
func (f *Files) put(ctx context.Context, b *objects.Bucket, kept *fleet.ResultFile, file result.File) (err error) {
	for range tries {
		call, cancel := context.WithTimeout(ctx, calling)
		err = f.client.Put(call, b, objectOf(kept.ID, kept.Expires.Unix()), file.Type, file.Data)
		cancel()
		if err == nil || ctx.Err() != nil {
			return err
		}
		f.Log.Warn("a file of a result cannot be stored", "account", kept.Account, "err", err)
		_ = sleep.For(ctx, again)
	}
	return fleet.Invalid("$.output", "has files that the object storage does not take")
}

func (f *Files) commit(ctx context.Context, cmd state.Command) error {
	ctx, cancel := context.WithTimeout(ctx, calling)
	defer cancel()
	results, err := f.Node.Propose(ctx, cmd)
	if err == nil {
		err = results[0].Err
	}
	return err
}

// objectOf names the object of a file.
func objectOf(name string, expires int64) string { return fmt.Sprintf("%d-%s", expires, name) }

func (f *Files) sign(name string, expires int64) ([]byte, error) {
	mac, err := f.Sealer.MAC(purposeURL, []byte(objectOf(name, expires)))
	return mac[:], err
}

func (f *Files) urlOf(file *fleet.ResultFile) (string, error) {
	signature, err := f.sign(file.ID, file.Expires.Unix())
	return fmt.Sprintf("%s/v2/files/%s?expires=%d&signature=%s", f.URL, file.ID, file.Expires.Unix(), base64.RawURLEncoding.EncodeToString(signature)), err
}

// OpenFile reads a file, or its head, that a signed URL leads to: name, expires and signature are those of the URL. header has the
// conditions and the range of the request. The caller closes the answer. Errors: not_found (the URL is wrong or has expired, or the file
// is not there any more), unavailable.
func (f *Files) OpenFile(ctx context.Context, method, name, expires, signature string, header http.Header) (*http.Response, error) {
	gone := fleet.NotFound("file")
	until, err := strconv.ParseInt(expires, 10, 64)
	if err != nil || !validName(name) {
		return nil, gone
	}
	given, err := base64.RawURLEncoding.Strict().DecodeString(signature)
	if err != nil {
		return nil, gone
	}
	want, err := f.sign(name, until)
	if err != nil {
		return nil, err
	}
	if !hmac.Equal(want, given) || f.Now().Unix() >= until {
		return nil, gone
	}
	b, err := f.bucket()
	switch {
	case err != nil:
		return nil, err
	case b == nil:
		return nil, gone
	}
	res, err := f.client.Open(ctx, b, method, objectOf(name, until), header)
	if err != nil {
		return nil, err
	}
	switch res.StatusCode {
	case http.StatusOK, http.StatusPartialContent, http.StatusNotModified, http.StatusRequestedRangeNotSatisfiable:
		return res, nil
	case http.StatusNotFound:
		return nil, errors.Join(gone, res.Body.Close())
	}
	return nil, errors.Join(fleet.Unavailable("the file cannot be read now", fmt.Errorf("status %d", res.StatusCode)), res.Body.Close())
}

// validName reports whether a file may have this name: letters and digits, and an extension.
func validName(name string) bool {
	return len(name) > 0 && len(name) < 64 && strings.IndexFunc(name, func(r rune) bool {
		return r != '.' && (r < '0' || r > '9') && (r < 'a' || r > 'z')
	}) < 0
}

// extension is what names of files of a media type end with.
func extension(kind string) string {
	known := map[string]string{
		"image/png": ".png", "image/jpeg": ".jpg", "image/webp": ".webp", "image/gif": ".gif", "image/avif": ".avif", "video/mp4": ".mp4",
		"video/webm": ".webm", "audio/mpeg": ".mp3", "audio/wav": ".wav", "audio/ogg": ".ogg", "audio/flac": ".flac", "application/json": ".json",
		"text/plain": ".txt",
	}
	if ext, ok := known[kind]; ok {
		return ext
	}
	return ".bin"
}

// Run deletes files that have expired until ctx ends, which it does with leadership.
func (f *Files) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		n, err := f.Sweep(ctx)
		if err != nil && ctx.Err() == nil {
			f.Log.Warn("delete files of results that have expired", "err", err)
		}
		if err != nil || n < swept {
			_ = sleep.For(ctx, every)
		}
	}
	return nil
}

// Sweep deletes some of the files that have expired, first from the bucket, and returns how many.
func (f *Files) Sweep(ctx context.Context) (int, error) {
	expired, err := f.Store.ExpiredFiles(f.Now(), swept)
	if err != nil || len(expired) == 0 {
		return 0, err
	}
	b, err := f.bucket()
	if err != nil {
		return 0, err
	}
	for i := range expired {
		if b == nil {
			break // there is nothing left of a store that was taken away
		}
		call, cancel := context.WithTimeout(ctx, calling)
		err := f.client.Delete(call, b, objectOf(expired[i].ID, expired[i].Expires.Unix()))
		cancel()
		if err != nil {
			return 0, err
		}
	}
	return len(expired), f.commit(ctx, state.DropFiles{Files: expired})
}
