package fleet

import "time"

// TLSFile is one file of what certificates for users are made of (an account at a certificate authority, keys,
// certificates, challenges), which all schedulers share.
type TLSFile struct {
	Name      string    `cbor:"1,keyasint"` // a path of at most 512 bytes
	Sealed    []byte    `cbor:"2,keyasint,omitempty"`
	UpdatedAt time.Time `cbor:"3,keyasint"`
}
