// Package pki gives a cluster its identities: one certificate authority, short-lived certificates that carry a role and an id, one-use
// join tokens, and the sealing of secrets at rest.
//
// It never opens a connection, never decides who may join (the state of a token lives in the scheduler's state machine), and never
// writes a secret to a log: every type that holds one prints as ***. A key, certificate or seal key file is durable (file and folder
// fsynced) when the function that wrote it returns without error.
package pki

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"strings"
)

// ServerName is the DNS name in every scheduler certificate. Clients verify this name and not the address that they dialled, so a
// scheduler may move without a new certificate.
const ServerName = "scheduler.gantry"

// GatewayName is what ServerName is to schedulers in the certificates of gateways, which hosts connect to.
const GatewayName = "gateway.gantry"

// Limits on the two variable parts of an identity, in bytes.
const (
	maxClusterID = 63
	maxNodeID    = 128
)

// ErrIdentity is wrapped by every error about a certificate that does not carry exactly one valid identity.
var ErrIdentity = errors.New("certificate identity")

// Role says what the holder of a certificate may be.
type Role string

// The roles. A host serves pods; a scheduler is a peer of the replicated control plane; a gateway carries requests to pods.
const (
	RoleHost      Role = "host"
	RoleScheduler Role = "scheduler"
	RoleGateway   Role = "gateway"
)

func (r Role) valid() bool { return r == RoleHost || r.serverName() != "" }

// serverName is the DNS name in certificates of a role; empty: nobody connects to it.
func (r Role) serverName() string {
	switch r {
	case RoleScheduler:
		return ServerName
	case RoleGateway:
		return GatewayName
	}
	return ""
}

// Identity is who a certificate speaks for inside its cluster. ID holds 1 to 128 of A-Z a-z 0-9 . _ - and begins with a letter or a digit.
type Identity struct {
	Role Role
	ID   string
}

// String returns role/id. An identity is public.
func (id Identity) String() string { return string(id.Role) + "/" + id.ID }

func (id Identity) validate() error {
	if !id.Role.valid() {
		return fmt.Errorf("%w: unknown role", ErrIdentity)
	}
	if !validName(id.ID, maxNodeID) {
		return fmt.Errorf("%w: id must be 1 to %d letters, digits, '.', '_' or '-'", ErrIdentity, maxNodeID)
	}
	return nil
}

func (id Identity) uri(cluster string) *url.URL {
	return &url.URL{Scheme: "spiffe", Host: cluster, Path: "/" + id.String()}
}

// IdentityFromCert reads the identity of leaf, which must carry exactly one URI name, spiffe://<cluster>/<role>/<id>, in the trust
// domain of ca. It does not verify signatures or dates: the caller has a verified chain from leaf to ca. Errors wrap ErrIdentity.
func IdentityFromCert(leaf, ca *x509.Certificate) (Identity, error) {
	cluster, err := ClusterID(ca)
	if err != nil {
		return Identity{}, err
	}
	if leaf == nil || len(leaf.URIs) != 1 {
		return Identity{}, fmt.Errorf("%w: not exactly one URI name", ErrIdentity)
	}
	role, nodeID, _ := strings.Cut(strings.TrimPrefix(leaf.URIs[0].Path, "/"), "/")
	id := Identity{Role: Role(role), ID: nodeID}
	if err := id.validate(); err != nil {
		return Identity{}, err
	}
	// Comparing the whole text leaves no room for user, port, query, fragment or another way to write the same path.
	if leaf.URIs[0].String() != id.uri(cluster).String() {
		return Identity{}, fmt.Errorf("%w: URI name is not in the trust domain of the CA", ErrIdentity)
	}
	return id, nil
}

// ClusterID returns the trust domain of a CA certificate. Errors wrap ErrIdentity.
func ClusterID(ca *x509.Certificate) (string, error) {
	if ca == nil || !ca.BasicConstraintsValid || !ca.IsCA || len(ca.URIs) != 1 {
		return "", fmt.Errorf("%w: not the CA of a cluster", ErrIdentity)
	}
	cluster := ca.URIs[0].Host
	if !validCluster(cluster) || ca.URIs[0].String() != clusterURI(cluster).String() {
		return "", fmt.Errorf("%w: CA has no valid trust domain", ErrIdentity)
	}
	return cluster, nil
}

func clusterURI(cluster string) *url.URL { return &url.URL{Scheme: "spiffe", Host: cluster} }

// validCluster keeps to the lower case of a SPIFFE trust domain, so that two spellings never name one cluster.
func validCluster(s string) bool {
	return validName(s, maxClusterID) && s == strings.ToLower(s) && alphanumeric(s[len(s)-1])
}

func validName(s string, limit int) bool {
	if s == "" || len(s) > limit || !alphanumeric(s[0]) {
		return false
	}
	for i := range len(s) {
		if c := s[i]; !alphanumeric(c) && c != '.' && c != '_' && c != '-' {
			return false
		}
	}
	return !strings.Contains(s, "..")
}

func alphanumeric(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}
