package client

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"gantry/fleet"
)

// Backend is where network volumes of one data center and tier are.
type Backend struct {
	ID           string        `json:"id"`
	DataCenterID string        `json:"dataCenterId"`
	Type         string        `json:"type"`
	Kind         string        `json:"kind"` // nfs, cephfs or local
	NFS          *NFSBackend   `json:"nfs"`
	Ceph         *CephBackend  `json:"cephfs"`
	Local        *LocalBackend `json:"local"`
	StorageHost  string        `json:"storageHost"` // empty: any with the role storage
	StoragePath  string        `json:"storagePath"`
	Quota        string        `json:"quota"` // enforced or measured
	Closed       bool          `json:"closed"`
	Volumes      int           `json:"volumes"`
	SizeGB       int64         `json:"sizeGb"`
	Host         string        `json:"host"` // that looks after its volumes now; empty: none
	Problem      string        `json:"problem"`
	CreatedAt    time.Time     `json:"createdAt"`
}

// NFSBackend is a directory that an NFSv4 server exports.
type NFSBackend struct {
	Server  string `json:"server"`
	Export  string `json:"export"`
	Options string `json:"options,omitempty"`
}

// CephBackend is a directory of a Ceph file system.
type CephBackend struct {
	Monitors   []string `json:"monitors"`
	FileSystem string   `json:"fileSystem"`
	Path       string   `json:"path,omitempty"`
	User       string   `json:"user"`
	AdminUser  string   `json:"adminUser"`
}

// LocalBackend is a directory that every host of the data center has.
type LocalBackend struct {
	Path string `json:"path"`
}

// BackendList is the answer of the list of backends.
type BackendList struct {
	Backends []Backend `json:"backends"`
}

// BackendBody is the body that makes or changes a backend; what is empty is left out. ID, DataCenterID, Type and Kind are
// for new ones alone.
type BackendBody struct {
	ID           string        `json:"id,omitempty"`
	DataCenterID string        `json:"dataCenterId,omitempty"`
	Type         string        `json:"type,omitempty"`
	Kind         string        `json:"kind,omitempty"`
	NFS          *NFSBackend   `json:"nfs,omitempty"`
	Ceph         *CephBackend  `json:"cephfs,omitempty"`
	Local        *LocalBackend `json:"local,omitempty"`
	StorageHost  *string       `json:"storageHost,omitempty"`
	StoragePath  *string       `json:"storagePath,omitempty"`
	Key          fleet.Secret  `json:"-"`
	AdminKey     fleet.Secret  `json:"-"`
	Closed       *bool         `json:"closed,omitempty"`
}

// sent is the body with its secrets in the clear, which fleet.Secret never writes.
func (b BackendBody) sent() any {
	return struct {
		BackendBody
		Key      string `json:"key,omitempty"`
		AdminKey string `json:"adminKey,omitempty"`
	}{b, b.Key.Reveal(), b.AdminKey.Reveal()}
}

const backendsPath = "/admin/v1/volume-backends"

// Backends lists the backends of network volumes; for operators.
func (c *Client) Backends(ctx context.Context) (Answer[BackendList], error) {
	return list[BackendList](ctx, c, backendsPath, nil)
}

// Backend reads a backend; for operators.
func (c *Client) Backend(ctx context.Context, id string) (Answer[Backend], error) {
	return call[Backend](ctx, c, http.MethodGet, backendsPath+"/"+word(id), nil, nil)
}

// CreateBackend adds a backend; for operators.
func (c *Client) CreateBackend(ctx context.Context, body BackendBody) (Answer[Backend], error) {
	return call[Backend](ctx, c, http.MethodPost, backendsPath, nil, body.sent())
}

// UpdateBackend changes a backend; for operators.
func (c *Client) UpdateBackend(ctx context.Context, id string, body BackendBody) (Answer[Backend], error) {
	return call[Backend](ctx, c, http.MethodPatch, backendsPath+"/"+word(id), nil, body.sent())
}

// DeleteBackend takes out a backend without volumes; for operators.
func (c *Client) DeleteBackend(ctx context.Context, id string) error {
	return c.remove(ctx, backendsPath+"/"+word(id))
}

// ForceDeleteBackend takes out a backend whose storage is lost, and forgets volumes that are being deleted on it; for
// operators.
func (c *Client) ForceDeleteBackend(ctx context.Context, id string) error {
	_, err := call[struct{}](ctx, c, http.MethodDelete, backendsPath+"/"+word(id), url.Values{"force": {"true"}}, nil)
	return err
}

// SetHostRoles replaces what a host may do beside running pods; for operators.
func (c *Client) SetHostRoles(ctx context.Context, id string, roles []string) (Answer[Host], error) {
	if roles == nil {
		roles = []string{}
	}
	return call[Host](ctx, c, http.MethodPatch, "/admin/v1/hosts/"+word(id), nil, map[string][]string{"roles": roles})
}
