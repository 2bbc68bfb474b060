package fleet

import "time"

// Registry is a credential for private images. Its user name and password are in Sealed only.
type Registry struct {
	ID        RegistryID `cbor:"1,keyasint"`
	Account   AccountID  `cbor:"2,keyasint"`
	Name      string     `cbor:"3,keyasint"`
	Sealed    []byte     `cbor:"4,keyasint"`
	CreatedAt time.Time  `cbor:"5,keyasint"`
	Rev       uint64     `cbor:"6,keyasint,omitempty"`
}

// Credential is an opened registry credential. It goes to the bound host and nowhere else.
type Credential struct {
	Username string
	Password Secret
}
