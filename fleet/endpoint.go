package fleet

import (
	"net/url"
	"strconv"
	"strings"
	"time"
)

// EndpointType says how requests reach the workers of an endpoint.
type EndpointType string

// The types.
const (
	EndpointQueue    EndpointType = "QUEUE"         // as jobs
	EndpointBalanced EndpointType = "LOAD_BALANCER" // directly
)

// ScalerType says what more workers are started for.
type ScalerType string

// The types.
const (
	ScaleByDelay    ScalerType = "QUEUE_DELAY"   // Value: seconds that a job may wait
	ScaleByRequests ScalerType = "REQUEST_COUNT" // Value: jobs or requests to a worker
)

// FlashBoot says what becomes of a worker that idled out.
type FlashBoot string

// The values.
const (
	FlashBootOff      FlashBoot = "OFF"
	FlashBootOn       FlashBoot = "FLASHBOOT"
	FlashBootPriority FlashBoot = "PRIORITY_FLASHBOOT"
)

// EndpointGPU asks for Count GPUs of one type for each worker: of the pools, in their order, without the excluded types.
type EndpointGPU struct {
	Pools    []string   `cbor:"1,keyasint"`
	Excluded []string   `cbor:"2,keyasint,omitempty"` // GPU types
	Count    int        `cbor:"3,keyasint"`
	CUDA     *CUDARange `cbor:"4,keyasint,omitempty"`
}

// WorkerBounds are how many workers an endpoint has.
type WorkerBounds struct {
	Min  int `cbor:"1,keyasint,omitempty"`
	Max  int `cbor:"2,keyasint,omitempty"`
	Idle int `cbor:"3,keyasint,omitempty"` // seconds that a worker without work stays; 0: the scaler alone decides
}

// Scaler is when an endpoint has more workers.
type Scaler struct {
	Type  ScalerType `cbor:"1,keyasint"`
	Value float64    `cbor:"2,keyasint"` // see ScalerType
}

// EndpointSpec is what an endpoint's owner asked for. Exactly one of GPU and CPU is set.
type EndpointSpec struct {
	Name     string            `cbor:"1,keyasint"`
	Type     EndpointType      `cbor:"2,keyasint"`
	Image    string            `cbor:"3,keyasint"`
	Args     string            `cbor:"4,keyasint,omitempty"`
	DiskGB   int               `cbor:"5,keyasint"`
	Ports    []Port            `cbor:"6,keyasint,omitempty"`
	Env      map[string]string `cbor:"7,keyasint,omitempty"`
	Registry RegistryID        `cbor:"8,keyasint,omitempty"`
	Template TemplateID        `cbor:"9,keyasint,omitempty"` // that it was created from

	GPU *EndpointGPU `cbor:"10,keyasint,omitempty"`
	CPU []CPURequest `cbor:"11,keyasint,omitempty"` // the first that there is room for

	Workers   WorkerBounds   `cbor:"12,keyasint"`
	Scaler    Scaler         `cbor:"13,keyasint"`
	Centers   []DataCenterID `cbor:"14,keyasint,omitempty"` // empty: any
	Volumes   []VolumeID     `cbor:"15,keyasint,omitempty"` // one in each data center at most; each worker gets the one of its place
	TimeoutMS int64          `cbor:"16,keyasint,omitempty"` // of a job's execution; 0: none
	FlashBoot FlashBoot      `cbor:"17,keyasint"`
	Retries   int            `cbor:"18,keyasint,omitempty"` // how often a job is given out again after its worker was lost
	FailAfter int            `cbor:"19,keyasint,omitempty"` // seconds after which jobs that can never run fail; 0: they wait

	// WebhookKey is the sealed secret under which the calls of webhooks are signed; empty: they are not. NewWebhookKey replaces it in a
	// change; it is not kept.
	WebhookKey    []byte  `cbor:"20,keyasint,omitempty"`
	NewWebhookKey *Secret `cbor:"-"`

	// Of an endpoint that balances; both are 0 on others.
	WaitSeconds int `cbor:"21,keyasint,omitempty"` // that a request waits for a worker
	MaxBodyMB   int `cbor:"22,keyasint,omitempty"` // that a request may have, and its answer

	Models []string `cbor:"23,keyasint,omitempty"` // references of models that workers find; see ModelRef
}

// Serving is where a worker of an endpoint that balances answers.
type Serving struct {
	Port   int
	Health int    // port of its health
	Path   string // of its health
}

// NothingListens is what a host says of a port of a pod that takes no connection.
const NothingListens = "nothing accepts connections on that port of the pod"

// Names of the variables that say so, to the worker as well.
const (
	EnvPort       = "PORT"
	EnvHealthPort = "PORT_HEALTH"
	EnvHealthPath = "HEALTH_CHECK_PATH"
)

// ServingOf reads an environment; what it does not say is as images expect it. Errors: invalid.
func ServingOf(env map[string]string) (Serving, error) {
	out := Serving{Port: 80, Path: "/ping"}
	number := func(name string, to *int) error {
		text, ok := env[name]
		if !ok {
			return nil
		}
		n, err := strconv.ParseUint(text, 10, 16)
		if err != nil || n == 0 {
			return Invalid("$.env."+name, "must be a port, 1 to 65535, on a LOAD_BALANCER endpoint")
		}
		*to = int(n)
		return nil
	}
	if err := number(EnvPort, &out.Port); err != nil {
		return out, err
	}
	out.Health = out.Port
	if err := number(EnvHealthPort, &out.Health); err != nil {
		return out, err
	}
	if path, ok := env[EnvHealthPath]; ok {
		if u, err := url.ParseRequestURI(path); err != nil || !strings.HasPrefix(path, "/") || u.Host != "" {
			return out, Invalid("$.env."+EnvHealthPath, "must be a path that begins with / on a LOAD_BALANCER endpoint")
		}
		out.Path = path
	}
	return out, nil
}

// FieldChange is a field of an endpoint that a release changed, with its values as the API shows them.
type FieldChange struct {
	Field string `cbor:"1,keyasint"`
	Old   string `cbor:"2,keyasint"` // JSON
	New   string `cbor:"3,keyasint"` // JSON
}

// Release is a version of what an endpoint's workers are made from.
type Release struct {
	ID      string        `cbor:"1,keyasint"`
	Version uint64        `cbor:"2,keyasint"` // from 1
	By      KeyID         `cbor:"3,keyasint,omitempty"`
	At      time.Time     `cbor:"4,keyasint"`
	Changes []FieldChange `cbor:"5,keyasint,omitempty"`
}

// MaxReleases is how many releases of an endpoint are remembered.
const MaxReleases = 20

// StandbyWorkers is how many of the hosts that an endpoint's next workers would get fetch its image beforehand.
const StandbyWorkers = 2

// Endpoint is a serverless endpoint.
type Endpoint struct {
	ID        EndpointID   `cbor:"1,keyasint"`
	Account   AccountID    `cbor:"2,keyasint"`
	Spec      EndpointSpec `cbor:"3,keyasint"`
	Releases  []Release    `cbor:"4,keyasint"` // the newest last, at least one
	Rev       uint64       `cbor:"5,keyasint"`
	CreatedAt time.Time    `cbor:"6,keyasint"`
}

// Version is that of the newest release.
func (e *Endpoint) Version() uint64 { return e.Releases[len(e.Releases)-1].Version }
