package state

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"gantry/fleet"
	"gantry/scheduler/state/table"
)

// The type numbers of commands about files of results; see numbers.go.
const (
	numPutObjectStore uint64 = 85 + iota
	numKeepFiles
	numDropFiles
)

func (PutObjectStore) number() uint64 { return numPutObjectStore }
func (KeepFiles) number() uint64      { return numKeepFiles }
func (DropFiles) number() uint64      { return numDropFiles }

const (
	maxFilesKept  = 1000 // in one command
	maxStoreText  = 512  // bytes of each of its texts
	maxStoreBytes = 1_000_000_000 * fleet.GB
)

// PutObjectStore replaces the store of results' files; one without an endpoint takes it away. Value: fleet.ObjectStore. Errors: invalid,
// in_use (files are where the store was).
type PutObjectStore struct {
	Store fleet.ObjectStore `cbor:"1,keyasint"`
}

// KeepFiles takes room for files that are about to be put into the store. Errors: invalid, not_found (there is no store), rate_limited
// (the account's files, or all, would have more bytes than they may).
type KeepFiles struct {
	Files []fleet.ResultFile `cbor:"1,keyasint"` // of one account
}

// DropFiles says that files are not in the store any more; those that are not known are ignored. Value: int, how many were.
type DropFiles struct {
	Files []fleet.ResultFile `cbor:"1,keyasint"`
}

// fileSum is what the files of an account are together.
type fileSum struct {
	Files int64 `cbor:"1,keyasint"`
	Bytes int64 `cbor:"2,keyasint"`
}

// fileKey orders files by when they expire.
func fileKey(f *fleet.ResultFile) string { return filesUntil(f.Expires) + f.ID }

func filesUntil(at time.Time) string { return fmt.Sprintf("%012d/", max(at.Unix(), 0)) }

func (c PutObjectStore) apply(t *txn) (any, error) {
	in := c.Store
	if in.Endpoint == "" {
		in = fleet.ObjectStore{}
	} else if err := checkStore(&in); err != nil {
		return nil, err
	}
	files := t.fileSum()
	if old := t.base.objectStore.Get(t.Txn, onlyKey); old != nil && !old.SamePlace(in) {
		if err := inUse("where the files of results are", uses{n: int(files.Files), thing: "file"}); err != nil {
			return nil, err
		}
	}
	if in.Endpoint == "" {
		t.base.objectStore.Drop(t.Txn, onlyKey)
	} else {
		t.base.objectStore.Put(t.Txn, onlyKey, &in)
	}
	t.Note(KindCatalog, "")
	return in, nil
}

func checkStore(s *fleet.ObjectStore) error {
	for _, text := range []struct{ path, value string }{
		{"$.endpoint", s.Endpoint}, {"$.region", s.Region}, {"$.bucket", s.Bucket}, {"$.accessKey", s.AccessKey},
	} {
		if text.value == "" || len(text.value) > maxStoreText {
			return fleet.Invalid(text.path, "must have 1 to 512 bytes")
		}
	}
	switch {
	case len(s.Prefix) > maxStoreText:
		return fleet.Invalid("$.prefix", "must have at most 512 bytes")
	case len(s.Sealed) == 0 || len(s.Sealed) > maxWebhookSealed:
		return fleet.Invalid("$.secret", "must have 1 to 900 bytes")
	case s.AccountBytes < 1 || s.AccountBytes > maxStoreBytes:
		return fleet.Invalid("$.accountGb", "must be 1 to 1000000000")
	case s.AllBytes < 1 || s.AllBytes > maxStoreBytes:
		return fleet.Invalid("$.allGb", "must be 1 to 1000000000")
	}
	return nil
}

// fileSum is what all files are together, as the batch has it before the command at hand.
func (t *txn) fileSum() (all fileSum) {
	t.base.fileSums.Count(t.Txn, func(s *fileSum) bool {
		all.Files, all.Bytes = all.Files+s.Files, all.Bytes+s.Bytes
		return false
	})
	return all
}

func (c KeepFiles) apply(t *txn) (any, error) {
	store := t.base.objectStore.Get(t.Txn, onlyKey)
	switch {
	case len(c.Files) == 0 || len(c.Files) > maxFilesKept:
		return nil, fleet.Invalid("$.files", "must be 1 to 1000")
	case store == nil:
		return nil, fleet.NotFound("object storage")
	}
	account, more := c.Files[0].Account, fileSum{Files: int64(len(c.Files))}
	for i := range c.Files {
		f := &c.Files[i]
		if f.Account != account || f.Bytes < 0 || f.Bytes > maxStoreBytes || f.ID == "" || len(f.ID) > maxID || strings.Contains(f.ID, "/") {
			return nil, fleet.Invalid("$.files", "must be of one account, each with an id and its size")
		}
		more.Bytes += f.Bytes
	}
	if t.base.accounts.Get(t.Txn, account) == nil {
		return nil, fleet.NotFound("account")
	}
	var sum fileSum
	if row := t.base.fileSums.Get(t.Txn, account); row != nil {
		sum = *row
	}
	if sum.Bytes+more.Bytes > store.AccountBytes {
		return nil, tooManyHolds(fmt.Sprintf("the files of the account's results would have more than %d bytes", store.AccountBytes))
	}
	if t.fileSum().Bytes+more.Bytes > store.AllBytes {
		return nil, tooManyHolds("the files of all accounts' results have as many bytes as they may")
	}
	for i := range c.Files {
		t.base.files.Put(t.Txn, fileKey(&c.Files[i]), &c.Files[i])
	}
	sum.Files, sum.Bytes = sum.Files+more.Files, sum.Bytes+more.Bytes
	t.base.fileSums.Put(t.Txn, account, &sum)
	return nil, nil
}

func (c DropFiles) apply(t *txn) (any, error) {
	if len(c.Files) > maxFilesKept {
		return nil, fleet.Invalid("$.files", "must be at most 1000")
	}
	n := 0
	for i := range c.Files {
		key := fileKey(&c.Files[i])
		had := t.base.files.Get(t.Txn, key)
		if had == nil {
			continue
		}
		n++
		t.base.files.Put(t.Txn, key, nil)
		sum := *t.base.fileSums.Get(t.Txn, had.Account)
		if sum.Files, sum.Bytes = sum.Files-1, sum.Bytes-had.Bytes; sum == (fileSum{}) {
			t.base.fileSums.Drop(t.Txn, had.Account)
			continue
		}
		t.base.fileSums.Put(t.Txn, had.Account, &sum)
	}
	return n, nil
}

// ObjectStore returns the store of results' files with what is in it; false: there is none.
func (v *View) ObjectStore() (out fleet.ObjectStoreView, ok bool) {
	for _, sum := range v.tb.fileSums.Rows {
		out.Files, out.Bytes = out.Files+sum.Files, out.Bytes+sum.Bytes
	}
	if row := v.tb.objectStore.Rows[onlyKey]; row != nil {
		out.ObjectStore, ok = *row, true
	}
	return out, ok
}

// errEnough ends a Range.
var errEnough = errors.New("enough")

// ExpiredFiles returns up to limit files that expired before or at now, by the log's time.
func (s *Store) ExpiredFiles(now time.Time, limit int) (out []fleet.ResultFile, err error) {
	var files *table.Cold[fleet.ResultFile]
	var rows *table.ColdView
	var to string
	err = s.View(func(v *View) (err error) {
		at, _ := v.Clock().Of(now)
		files, to = &v.tb.files, filesUntil(at.Add(time.Second))
		rows, err = v.store.Cold()
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the files of results: %w", err)
	}
	err = files.Range(rows, "", to, func(_ []byte, f *fleet.ResultFile) error {
		if out = append(out, *f); len(out) == limit {
			return errEnough
		}
		return nil
	})
	if err != nil && !errors.Is(err, errEnough) {
		return nil, fmt.Errorf("read the files of results: %w", err)
	}
	return out, nil
}
