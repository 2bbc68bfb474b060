package rest

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"gantry/api/auth"
	"gantry/api/limit"
	"gantry/fleet"
)

// Backend is where network volumes of one data center and tier are.
type Backend struct {
	ID           string        `json:"id" doc:"Backend, as its operator named it." example:"ceph-nvme"`
	DataCenterID string        `json:"dataCenterId" doc:"Data center whose hosts mount it."`
	Type         string        `json:"type" doc:"Tier of its volumes." enum:"STANDARD,HIGH_PERFORMANCE"`
	Kind         string        `json:"kind" doc:"How it is reached." enum:"nfs,cephfs,local"`
	NFS          *NFSBackend   `json:"nfs" doc:"With kind nfs, else null."`
	Ceph         *CephBackend  `json:"cephfs" doc:"With kind cephfs, else null. Keys are not shown."`
	Local        *LocalBackend `json:"local" doc:"With kind local, else null."`
	StorageHost  *string       `json:"storageHost" doc:"The one host that makes and deletes its volumes; null: any host of the data center with the role storage."`
	StoragePath  *string       `json:"storagePath" doc:"The backend's root as a directory of storageHost, which limits the size of the volumes in it; null: storageHost mounts the backend as all do."`
	Quota        string        `json:"quota" doc:"enforced: nothing can be written above a volume's size; measured: what volumes hold is measured every minute or so, and one that holds 105 % of its size becomes read-only." enum:"enforced,measured"`
	Closed       bool          `json:"closed" doc:"Whether it gets no new volumes."`
	Volumes      int           `json:"volumes" doc:"Volumes on it, with those that are being deleted."`
	SizeGB       int64         `json:"sizeGb" doc:"Sum of their sizes in GB."`
	Host         *string       `json:"host" doc:"Host that looks after its volumes now; null: none is connected."`
	Problem      *string       `json:"problem" doc:"What is wrong, or null."`
	CreatedAt    Time          `json:"createdAt" doc:"When it was made."`
}

// NFSBackend is a directory that an NFSv4 server exports.
type NFSBackend struct {
	Server  string `json:"server" doc:"Host name or address of the server." minLength:"1" maxLength:"253" pattern:"^[A-Za-z0-9.:-]+$" patternDescription:"a host name or an address" example:"nfs-1.example"`
	Export  string `json:"export" doc:"Absolute path of the export." minLength:"2" maxLength:"1024" pattern:"^/" patternDescription:"an absolute path" example:"/srv/volumes"`
	Options string `json:"options,omitempty" doc:"Mount options of nfs(5), comma-separated, in place of the defaults of the same name." maxLength:"512" example:"nconnect=4"`
}

// CephBackend is a directory of a Ceph file system.
type CephBackend struct {
	Monitors   []string `json:"monitors" doc:"Monitors as host:port." minItems:"1" maxItems:"16" example:"[\"10.0.0.11:6789\"]"`
	FileSystem string   `json:"fileSystem" doc:"Name of the file system." minLength:"1" maxLength:"128" example:"cephfs"`
	Path       string   `json:"path,omitempty" doc:"Absolute path in the file system below which the volumes are." maxLength:"1024" pattern:"^/" patternDescription:"an absolute path" default:"/" example:"/gantry"`
	User       string   `json:"user" doc:"Ceph user, without 'client.', with whose key every host mounts; it must not be allowed to set quotas (no 'p' in its mds capability)." minLength:"1" maxLength:"128" example:"gantry"`
	AdminUser  string   `json:"adminUser" doc:"Ceph user of hosts with the role storage, which set quotas ('rwp')." minLength:"1" maxLength:"128" example:"gantry-admin"`
}

// LocalBackend is a directory that every host of the data center has, for development.
type LocalBackend struct {
	Path string `json:"path" doc:"Absolute path." minLength:"2" maxLength:"1024" pattern:"^/" patternDescription:"an absolute path" example:"/srv/volumes"`
}

// BackendList is the answer to listing backends.
type BackendList struct {
	Page
	Backends []Backend `json:"backends" doc:"Backends of network volumes, by id."`
}

// BackendSettings are what can be changed of a backend.
type BackendSettings struct {
	NFS         *NFSBackend   `json:"nfs,omitempty" doc:"With kind nfs. Its export cannot change while volumes are on it."`
	Ceph        *CephBackend  `json:"cephfs,omitempty" doc:"With kind cephfs. Its file system and path cannot change while volumes are on it."`
	Local       *LocalBackend `json:"local,omitempty" doc:"With kind local. Its path cannot change while volumes are on it."`
	StorageHost *string       `json:"storageHost,omitempty" doc:"The one host that makes and deletes its volumes, which must have the role storage; \"\": any host of the data center that has it. Kind local needs one." maxLength:"14" example:"h7d2k9s4f1g6j3"`
	StoragePath *string       `json:"storagePath,omitempty" doc:"The backend's root as a directory of storageHost; \"\": none." maxLength:"1024" example:"/srv/volumes"`
	Key         string        `json:"key,omitempty" doc:"With kind cephfs: key of user. It is stored encrypted and never shown." maxLength:"256" example:"placeholder"`
	AdminKey    string        `json:"adminKey,omitempty" doc:"With kind cephfs: key of adminUser. It is stored encrypted, sent to hosts with the role storage alone, and never shown." maxLength:"256" example:"placeholder"`
	Closed      *bool         `json:"closed,omitempty" doc:"Whether it gets no new volumes." example:"true"`
}

// CreateBackendRequest is the body that makes a backend.
type CreateBackendRequest struct {
	ID           string `json:"id" doc:"Name of the backend, for ever." minLength:"1" maxLength:"63" pattern:"^[a-z][a-z0-9-]*$" patternDescription:"lower-case letters, digits and '-', beginning with a letter" example:"ceph-nvme"`
	DataCenterID string `json:"dataCenterId" doc:"Data center whose hosts mount it." minLength:"1" maxLength:"63" example:"EU-RO-1"`
	Type         string `json:"type,omitempty" doc:"Tier of its volumes." enum:"STANDARD,HIGH_PERFORMANCE" default:"STANDARD" example:"STANDARD"`
	Kind         string `json:"kind" doc:"How it is reached." enum:"nfs,cephfs,local" example:"cephfs"`
	BackendSettings
}

// UpdateBackendRequest is the body that changes a backend.
type UpdateBackendRequest struct {
	BackendSettings
}

// TransformSchema says which members may be null.
func (Backend) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return nullable(s, "nfs", "cephfs", "local")
}

func backendIDParam() *huma.Param { return pathParam("Backend.", "ceph-nvme") }

func (a *API) registerBackends() {
	read, write := auth.Read(fleet.GroupAdmin), auth.Write(fleet.GroupAdmin)
	handle(a, route{
		method: http.MethodGet, path: "/admin/v1/volume-backends", id: "listBackends", tag: "Operators", summary: "List backends of network volumes",
		text:  "Lists where network volumes are, by id. Keys are not shown.",
		scope: read, limit: limit.PerAccount, status: http.StatusOK, out: BackendList{Backends: []Backend{exampleBackend()}},
	}, func(ctx context.Context, _ *call, _ *none) (*BackendList, error) {
		all, err := showAll(backendRecord)(a.svc.Backends(ctx))
		return &BackendList{Backends: all}, err
	})
	handle(a, route{
		method: http.MethodPost, path: "/admin/v1/volume-backends", id: "createBackend", tag: "Operators", summary: "Add a backend of network volumes",
		text: "Adds storage on which network volumes of a data center and tier are made. 400: the data center has too " +
			"many. 404: there is no such data center, or no such host. 409: there is a backend of this id. 422: a single value is wrong, or does not fit the kind.",
		scope: write, limit: limit.PerAccount, status: http.StatusCreated, errors: []int{http.StatusConflict, http.StatusNotFound},
		in: CreateBackendRequest{ID: "ceph-nvme", DataCenterID: "EU-RO-1", Kind: "cephfs", BackendSettings: exampleBackendSettings()}, out: exampleBackend(),
	}, a.createBackend)
	handle(a, route{
		method: http.MethodGet, path: "/admin/v1/volume-backends/{id}", id: "getBackend", tag: "Operators", summary: "Get a backend of network volumes",
		text:  "Returns a backend. 404: there is none of this id.",
		scope: read, limit: limit.PerAccount, status: http.StatusOK, params: []*huma.Param{backendIDParam()}, out: exampleBackend(),
	}, func(ctx context.Context, c *call, _ *none) (*Backend, error) {
		return show(backendRecord)(a.svc.Backend(ctx, fleet.BackendID(c.args.text("id"))))
	})
	handle(a, route{
		method: http.MethodPatch, path: "/admin/v1/volume-backends/{id}", id: "updateBackend", tag: "Operators", summary: "Change a backend of network volumes",
		text: "Changes a backend; what is left out stays, a part that is given (nfs, cephfs, local) is replaced whole. Pods that run keep what they have mounted. " +
			"400: volumes would not be found any more. 404: there is none of this id, or no such host. 422: a single value is wrong, or does not fit the kind.",
		scope: write, limit: limit.PerAccount, status: http.StatusOK, params: []*huma.Param{backendIDParam()},
		in: UpdateBackendRequest{BackendSettings{Closed: new(true)}}, out: exampleBackend(),
	}, a.updateBackend)
	handle(a, route{
		method: http.MethodDelete, path: "/admin/v1/volume-backends/{id}", id: "deleteBackend", tag: "Operators", summary: "Take a backend of network volumes out",
		text: "Takes a backend out. With force, volumes that are still being deleted are forgotten: it is for storage that is lost, and what it still holds of them " +
			"nobody removes any more. 400: volumes are on it, or are still being deleted. 404: there is none of this id.",
		scope: write, limit: limit.PerAccount, status: http.StatusNoContent,
		params: []*huma.Param{backendIDParam(), flagParam("force", "Forget volumes that are being deleted; those that somebody has keep the backend even so.", false)},
	}, func(ctx context.Context, c *call, _ *none) (*none, error) {
		remove := a.svc.DeleteBackend
		if c.args.flag("force", false) {
			remove = a.svc.ForceDeleteBackend
		}
		return nil, remove(ctx, fleet.BackendID(c.args.text("id")))
	})
}

func (a *API) createBackend(ctx context.Context, _ *call, in *CreateBackendRequest) (*Backend, error) {
	b := fleet.Backend{
		ID: fleet.BackendID(in.ID), DataCenter: fleet.DataCenterID(in.DataCenterID), Type: fleet.VolumeType(in.Type), Kind: fleet.BackendKind(in.Kind),
	}
	if b.Type == "" {
		b.Type = fleet.VolumeStandard
	}
	secrets := in.apply(&b)
	return show(backendRecord)(a.svc.CreateBackend(ctx, b, secrets))
}

func (a *API) updateBackend(ctx context.Context, c *call, in *UpdateBackendRequest) (*Backend, error) {
	view, err := a.svc.Backend(ctx, fleet.BackendID(c.args.text("id")))
	if err != nil {
		return nil, err
	}
	secrets := in.apply(&view.Backend)
	return show(backendRecord)(a.svc.UpdateBackend(ctx, view.Backend, secrets))
}

// apply changes a backend, and returns the keys that were given.
func (in *BackendSettings) apply(b *fleet.Backend) fleet.BackendSecrets {
	if in.NFS != nil {
		b.NFS = &fleet.NFSBackend{Server: in.NFS.Server, Export: in.NFS.Export, Options: in.NFS.Options}
	}
	if in.Ceph != nil {
		b.Ceph = &fleet.CephBackend{
			Monitors: in.Ceph.Monitors, FileSystem: in.Ceph.FileSystem, Path: in.Ceph.Path, User: in.Ceph.User, AdminUser: in.Ceph.AdminUser,
		}
		if b.Ceph.Path == "" {
			b.Ceph.Path = "/"
		}
	}
	if in.Local != nil {
		b.Local, b.StoragePath = &fleet.LocalBackend{Path: in.Local.Path}, ""
	}
	if in.StorageHost != nil {
		b.StorageHost = fleet.HostID(*in.StorageHost)
	}
	if in.StoragePath != nil {
		b.StoragePath = *in.StoragePath
	}
	if in.Closed != nil {
		b.Closed = *in.Closed
	}
	return fleet.BackendSecrets{Key: fleet.Secret(in.Key), AdminKey: fleet.Secret(in.AdminKey)}
}

func backendRecord(v fleet.BackendView) Backend {
	b := v.Backend
	out := Backend{
		ID: string(b.ID), DataCenterID: string(b.DataCenter), Type: string(b.Type), Kind: string(b.Kind), StorageHost: textOrNull(string(b.StorageHost)),
		StoragePath: textOrNull(b.StoragePath), Quota: "enforced", Closed: b.Closed, Volumes: v.Volumes, SizeGB: v.SizeGB, Host: textOrNull(string(v.Host)),
		Problem: textOrNull(v.Problem), CreatedAt: Time{b.CreatedAt},
	}
	if b.Measured() {
		out.Quota = "measured"
	}
	if b.NFS != nil {
		out.NFS = &NFSBackend{Server: b.NFS.Server, Export: b.NFS.Export, Options: b.NFS.Options}
	}
	if b.Ceph != nil {
		out.Ceph = &CephBackend{
			Monitors: b.Ceph.Monitors, FileSystem: b.Ceph.FileSystem, Path: b.Ceph.Path, User: b.Ceph.User, AdminUser: b.Ceph.AdminUser,
		}
	}
	if b.Local != nil {
		out.Local = &LocalBackend{Path: b.Local.Path}
	}
	return out
}

func exampleBackendSettings() BackendSettings {
	ceph := exampleCeph()
	return BackendSettings{Ceph: &ceph, Key: "placeholder", AdminKey: "placeholder"}
}

func exampleCeph() CephBackend {
	return CephBackend{Monitors: []string{"10.0.0.11:6789"}, FileSystem: "cephfs", Path: "/gantry", User: "gantry", AdminUser: "gantry-admin"}
}

func exampleBackend() Backend {
	ceph, host := exampleCeph(), "h7d2k9s4f1g6j3"
	return Backend{
		ID: "ceph-nvme", DataCenterID: "EU-RO-1", Type: "STANDARD", Kind: "cephfs", Ceph: &ceph, Quota: "enforced", Volumes: 3, SizeGB: 300, Host: &host,
		CreatedAt: exampleTime(0),
	}
}
