package main

import (
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"os/user"
	"strconv"

	"gantry/internal/pki"
)

// identity is who the serving process is on the host.
type identity struct{ uid, gid int }

const defaultUser = "gantry-s3"

// who finds the user that the flags name.
func (c *runCmd) who() (identity, error) {
	name := c.User
	if name == "" {
		name = defaultUser
	}
	found, err := user.Lookup(name)
	var unknown user.UnknownUserError
	switch {
	case errors.As(err, &unknown) && c.User == "":
		return identity{defaultID, defaultID}, nil
	case errors.As(err, &unknown):
		id, err := strconv.ParseUint(c.User, 10, 32)
		if err != nil {
			return identity{}, fmt.Errorf("--user: there is no user %q", c.User)
		}
		return checkIdentity(identity{int(id), int(id)})
	case err != nil:
		return identity{}, fmt.Errorf("--user: %w", err)
	}
	uid, err := strconv.Atoi(found.Uid)
	if err != nil {
		return identity{}, fmt.Errorf("--user: %w", err)
	}
	gid, err := strconv.Atoi(found.Gid)
	if err != nil {
		return identity{}, fmt.Errorf("--user: %w", err)
	}
	return checkIdentity(identity{uid, gid})
}

// checkIdentity refuses users that have something.
func checkIdentity(i identity) (identity, error) {
	for _, id := range []int{i.uid, i.gid} {
		if id <= 0 || id >= volumeIDs {
			return identity{}, fmt.Errorf("--user: %d is root or owns files of network volumes", id)
		}
	}
	return i, nil
}

// servingTLS is a certificate with its key, PEM.
type servingTLS struct {
	Cert []byte `json:"cert"`
	Key  []byte `json:"key"`
}

func (c *runCmd) readTLS() (servingTLS, error) {
	cert, err := os.ReadFile(c.TLSCert)
	if err != nil {
		return servingTLS{}, fmt.Errorf("--tls-cert: %w", err)
	}
	key, err := pki.ReadSecretFile(c.TLSKey)
	if err != nil {
		return servingTLS{}, fmt.Errorf("--tls-key: %w", err)
	}
	if _, err := tls.X509KeyPair(cert, key); err != nil {
		return servingTLS{}, fmt.Errorf("--tls-cert and --tls-key: %w", err)
	}
	return servingTLS{cert, key}, nil
}
