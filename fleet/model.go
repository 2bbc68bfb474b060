package fleet

import (
	"regexp"
	"time"
)

// Model is a public model: an endpoint of one account whose jobs any account with credit may submit, for a price. Their caller pays,
// and alone sees them; they wait in the endpoint's queue.
type Model struct {
	ID          ModelID     `cbor:"1,keyasint"`
	Endpoint    EndpointID  `cbor:"2,keyasint"` // a queue endpoint
	Owner       AccountID   `cbor:"3,keyasint"` // of the endpoint; set by Apply
	Description string      `cbor:"4,keyasint,omitempty"`
	Schema      []byte      `cbor:"5,keyasint,omitempty"` // JSON Schema of a job's input; empty: any object
	Price       ModelPrice  `cbor:"6,keyasint"`
	Limits      ModelLimits `cbor:"7,keyasint"`
	Closed      bool        `cbor:"8,keyasint,omitempty"` // it takes no new jobs
	CreatedAt   time.Time   `cbor:"9,keyasint"`
}

// ModelPrice is what a completed job costs its caller: Request, and Unit for each unit that its output counts.
type ModelPrice struct {
	Request  Money  `cbor:"1,keyasint,omitempty"`
	Unit     Money  `cbor:"2,keyasint,omitempty"`
	Counted  string `cbor:"3,keyasint,omitempty"` // member of the output that says how many units it has; empty: no unit is charged
	MaxUnits int64  `cbor:"4,keyasint,omitempty"` // that one job is charged for
}

// ModelLimits bound what one account may ask of a model.
type ModelLimits struct {
	Jobs int `cbor:"1,keyasint"` // that wait or run
}

// Bounds of a model.
const (
	MaxModelPrice  = 1000 * Dollar // of a request, and of a unit
	MaxModelUnits  = 1_000_000
	MaxModelJobs   = 1000 // of one account, of all models together, too
	MaxModelSchema = 64 << 10
	MaxModelText   = 1000 // bytes of a description
)

// Most is the most that one job costs: what is held of its caller's credit until it ends.
func (p ModelPrice) Most() Money { return p.Request + p.Unit*Money(p.MaxUnits) }

// Of is what a job with so many units costs.
func (p ModelPrice) Of(units int64) Money {
	return p.Request + p.Unit*Money(min(max(units, 0), p.MaxUnits))
}

// ModelView is a model with the jobs of it that wait or run.
type ModelView struct {
	Model
	Jobs int
}

// ModelIDRule says what a model may be called.
const ModelIDRule = "must be 2 to 63 small letters, digits and '-', beginning with a letter, and none of the API's own words"

var modelID = regexp.MustCompile(`^[a-z][a-z0-9-]{1,62}$`)

// ValidModelID reports whether a model may be called so.
func ValidModelID(s string) bool { return modelID.MatchString(s) && !reservedWords[s] }

// CreditHold is credit that is kept for a job of a public model until the job has ended.
type CreditHold struct {
	ID      string     `cbor:"1,keyasint"`
	Account AccountID  `cbor:"2,keyasint"` // whose credit it is
	Model   ModelID    `cbor:"3,keyasint"`
	Owner   AccountID  `cbor:"4,keyasint"` // who is paid; set by Apply
	Price   ModelPrice `cbor:"5,keyasint"` // set by Apply
	Job     [16]byte   `cbor:"6,keyasint"`
	At      time.Time  `cbor:"7,keyasint"`
}

// ObjectStore is the bucket of S3 in which the files of results of public models are.
type ObjectStore struct {
	Endpoint  string `cbor:"1,keyasint"` // http or https URL; empty: there is none, and files stay in results
	Region    string `cbor:"2,keyasint"`
	Bucket    string `cbor:"3,keyasint"`
	Prefix    string `cbor:"4,keyasint,omitempty"` // of the names of objects
	AccessKey string `cbor:"5,keyasint"`
	Sealed    []byte `cbor:"6,keyasint"` // the secret of the access key
	// AccountBytes and AllBytes are what the files of one account, and of all, may have together.
	AccountBytes int64 `cbor:"7,keyasint"`
	AllBytes     int64 `cbor:"8,keyasint"`
}

// SamePlace reports whether two stores have their objects at the same place.
func (o ObjectStore) SamePlace(other ObjectStore) bool {
	return o.Endpoint == other.Endpoint && o.Bucket == other.Bucket && o.Prefix == other.Prefix
}

// ObjectStoreView is a store with what is in it.
type ObjectStoreView struct {
	ObjectStore
	Files, Bytes int64
}

// FileLife is for how long the file of a result, and the URL that leads to it, are there.
const FileLife = 7 * 24 * time.Hour

// ResultFile is a file of a result of a public model.
type ResultFile struct {
	ID      string    `cbor:"1,keyasint"`
	Account AccountID `cbor:"2,keyasint"` // the caller's
	Bytes   int64     `cbor:"3,keyasint"`
	Expires time.Time `cbor:"4,keyasint"`
}
