package fleet

import "time"

// Category says what a template's image is for.
type Category string

// The categories.
const (
	CategoryCPU    Category = "CPU"
	CategoryNVIDIA Category = "NVIDIA"
	CategoryAMD    Category = "AMD"
)

// TemplateSource is the slice of the public catalog that a public template is in.
type TemplateSource string

// The sources. Only operators make a template official or verified.
const (
	SourceOfficial  TemplateSource = "official"
	SourceVerified  TemplateSource = "verified"
	SourceCommunity TemplateSource = "community"
)

// Template is a reusable configuration of pods and endpoints.
type Template struct {
	ID           TemplateID        `cbor:"1,keyasint"`
	Account      AccountID         `cbor:"2,keyasint"`
	Name         string            `cbor:"3,keyasint"`
	Image        string            `cbor:"4,keyasint"`
	Args         string            `cbor:"5,keyasint,omitempty"`
	DiskGB       int               `cbor:"6,keyasint,omitempty"` // 0: the default of what is made from it
	Ports        []Port            `cbor:"7,keyasint,omitempty"`
	Env          map[string]string `cbor:"8,keyasint,omitempty"`
	Registry     RegistryID        `cbor:"9,keyasint,omitempty"` // for the owner's pods only
	Persistent   *PersistentMount  `cbor:"10,keyasint,omitempty"`
	Serverless   bool              `cbor:"11,keyasint,omitempty"`
	Public       bool              `cbor:"12,keyasint,omitempty"` // every account may read and use it
	Category     Category          `cbor:"13,keyasint"`
	StartSSH     bool              `cbor:"14,keyasint,omitempty"`
	StartJupyter bool              `cbor:"15,keyasint,omitempty"`
	AllowedCUDA  []string          `cbor:"16,keyasint,omitempty"`
	Source       TemplateSource    `cbor:"17,keyasint,omitempty"` // empty: community
	Rev          uint64            `cbor:"18,keyasint"`
	CreatedAt    time.Time         `cbor:"19,keyasint"`
}
