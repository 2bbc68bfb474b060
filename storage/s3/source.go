package s3

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"time"
)

// ErrNoKey says that there is no such access key.
var ErrNoKey = errors.New("no such access key")

// Source tells who may do what, and opens folders. It is safe for concurrent use. Errors other than ErrNoKey are
// answered as 503.
type Source interface {
	// Access returns what an access key may do. The date is of the form "20060102"; the signing key is that of
	// the date and of the handler's region. The error is ErrNoKey when there is none.
	Access(ctx context.Context, key, date string) (Access, error)
	// Open returns the folder of a volume, one of Access.Volumes. The handler calls its Release once.
	Open(ctx context.Context, key, volume string) (*Folder, error)
}

// Access is what an access key may do.
type Access struct {
	Account    string
	ReadOnly   bool
	SigningKey []byte // SigV4: date, region, "s3", "aws4_request"
	Volumes    []Volume
}

// Volume is a network volume that an access key sees as a bucket.
type Volume struct {
	ID        string // the bucket's name
	Name      string
	CreatedAt time.Time
	SizeGB    int64
	ReadOnly  bool // it is over its size: objects may be read and deleted
}

// Folder is a volume's folder, open.
type Folder struct {
	Root     *os.Root
	Owner    uint32 // user and group that files are made and asked for as; 0: the process's own
	ReadOnly bool   // nothing can be written or deleted
	Release  func() // may be nil
	Broken   func() // may be nil; the folder is of no use any more, such as when its server was set up anew
}

// Config is what a Handler needs. Zero limits mean the defaults.
type Config struct {
	Source  Source
	Region  string   // of the signatures
	Domains []string // a host BUCKET.DOMAIN names the bucket; without port
	Origins []string // whose pages may send requests and read the answers, such as "https://api.example.com"
	Log     *slog.Logger
	Limits  Limits
}

// Limits bounds what clients can use up.
type Limits struct {
	Requests        int           // at a time, in all; default 1024
	AccountRequests int           // at a time, per account; default a quarter of Requests
	VolumeRequests  int           // at a time, per volume; default 64
	VolumeThreads   int           // threads of one volume in calls of the file system that look up or change names; default 16
	Wait            time.Duration // for one of those above before 503 SlowDown; default 5 s
	Stall           time.Duration // without a byte from or to the client; default 60 s
	FolderEntries   int           // in one folder that is listed; default 2,000,000
	CacheEntries    int           // sorted names kept in memory, in all; default 1,000,000
}

func (l Limits) withDefaults() Limits {
	ints := []struct {
		at        *int
		byDefault int
	}{
		{&l.Requests, 1024},
		{&l.VolumeRequests, 64},
		{&l.VolumeThreads, 16},
		{&l.FolderEntries, 2_000_000},
		{&l.CacheEntries, 1_000_000},
	}
	for _, i := range ints {
		if *i.at <= 0 {
			*i.at = i.byDefault
		}
	}
	if l.AccountRequests <= 0 {
		l.AccountRequests = max(l.Requests/4, 1)
	}
	if l.Wait <= 0 {
		l.Wait = 5 * time.Second
	}
	if l.Stall <= 0 {
		l.Stall = time.Minute
	}
	return l
}

const (
	maxObject   = 4_000_000_000_000 // bytes
	maxPut      = 5 << 30           // bytes of one body or one copy
	maxXML      = 4 << 20           // bytes; 10,000 parts with their checksums need half of it
	largeXML    = 64 << 10          // bytes; of larger ones an account has as many at a time as a volume has threads
	maxKey      = 1024              // bytes
	maxName     = 255               // bytes of a component
	maxMeta     = 2 << 10           // bytes of user metadata
	maxHeaders  = 1 << 10           // bytes of the content headers that are kept
	maxParts    = 10_000
	maxDeletes  = 1000
	maxPage     = 1000
	maxQuery    = 64 // parameters
	maxPresign  = 7 * 24 * time.Hour
	maxSkew     = time.Hour
	leftoverAge = 7 * 24 * time.Hour
)
