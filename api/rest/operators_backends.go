package rest

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"gantry/api/admin"
	"gantry/api/auth"
	"gantry/api/limit"
	"gantry/api/v2"
	"gantry/fleet"
)

// BackendService keeps backends of network volumes.
type BackendService interface {
	Backends(ctx context.Context) ([]fleet.BackendView, error)
	Backend(ctx context.Context, id fleet.BackendID) (fleet.BackendView, error)
	// CreateBackend makes a backend of network volumes. Of b the caller leaves out Sealed, Rev and CreatedAt.
	CreateBackend(ctx context.Context, b fleet.Backend, secrets fleet.BackendSecrets) (fleet.BackendView, error)
	// UpdateBackend changes a backend; an empty secret stays as it is.
	UpdateBackend(ctx context.Context, b fleet.Backend, secrets fleet.BackendSecrets) (fleet.BackendView, error)
	DeleteBackend(ctx context.Context, id fleet.BackendID) error
	// ForceDeleteBackend deletes one whose storage is lost, and forgets the volumes that are being deleted on it.
	ForceDeleteBackend(ctx context.Context, id fleet.BackendID) error
}

func backendIDParam() *huma.Param { return pathParam("Backend.", "ceph-nvme") }

func (a *API) registerBackends() {
	read, write := auth.Read(fleet.GroupAdmin), auth.Write(fleet.GroupAdmin)
	on(a, route{
		method: http.MethodGet, path: "/admin/v1/volume-backends", id: "listBackends", tag: "Operators", summary: "List backends of network volumes",
		text:  "Lists where network volumes are, by id. Keys are not shown.",
		scope: read, limit: limit.PerAccount, status: http.StatusOK, out: admin.BackendList{Backends: []admin.Backend{exampleBackend()}},
	}, func(ctx context.Context, svc BackendService, _ *call, _ *none) (*admin.BackendList, error) {
		all, err := showAll(backendRecord)(svc.Backends(ctx))
		return &admin.BackendList{Backends: all}, err
	})
	on(a, route{
		method: http.MethodPost, path: "/admin/v1/volume-backends", id: "createBackend", tag: "Operators", summary: "Add a backend of network volumes",
		text: "Adds storage on which network volumes of a data center and tier are made. 400: the data center has too " +
			"many. 404: there is no such data center, or no such host. 409: there is a backend of this id. 422: a single value is wrong, or does not fit the kind.",
		scope: write, limit: limit.PerAccount, status: http.StatusCreated, errors: []int{http.StatusConflict, http.StatusNotFound},
		in: admin.CreateBackendRequest{ID: "ceph-nvme", DataCenterID: "EU-RO-1", Kind: "cephfs", BackendSettings: exampleBackendSettings()}, out: exampleBackend(),
	}, createBackend)
	on(a, route{
		method: http.MethodGet, path: "/admin/v1/volume-backends/{id}", id: "getBackend", tag: "Operators", summary: "Get a backend of network volumes",
		text:  "Returns a backend. 404: there is none of this id.",
		scope: read, limit: limit.PerAccount, status: http.StatusOK, params: []*huma.Param{backendIDParam()}, out: exampleBackend(),
	}, func(ctx context.Context, svc BackendService, c *call, _ *none) (*admin.Backend, error) {
		return show(backendRecord)(svc.Backend(ctx, fleet.BackendID(c.args.text("id"))))
	})
	on(a, route{
		method: http.MethodPatch, path: "/admin/v1/volume-backends/{id}", id: "updateBackend", tag: "Operators", summary: "Change a backend of network volumes",
		text: "Changes a backend; what is left out stays, a part that is given (nfs, cephfs, local) is replaced whole. Pods that run keep what they have mounted. " +
			"400: volumes would not be found any more. 404: there is none of this id, or no such host. 422: a single value is wrong, or does not fit the kind.",
		scope: write, limit: limit.PerAccount, status: http.StatusOK, params: []*huma.Param{backendIDParam()},
		in: admin.UpdateBackendRequest{BackendSettings: admin.BackendSettings{Closed: new(true)}}, out: exampleBackend(),
	}, updateBackend)
	on(a, route{
		method: http.MethodDelete, path: "/admin/v1/volume-backends/{id}", id: "deleteBackend", tag: "Operators", summary: "Take a backend of network volumes out",
		text: "Takes a backend out. With force, volumes that are still being deleted are forgotten: it is for storage that is lost, and what it still holds of them " +
			"nobody removes any more. 400: volumes are on it, or are still being deleted. 404: there is none of this id.",
		scope: write, limit: limit.PerAccount, status: http.StatusNoContent,
		params: []*huma.Param{backendIDParam(), flagParam("force", "Forget volumes that are being deleted; those that somebody has keep the backend even so.", false)},
	}, func(ctx context.Context, svc BackendService, c *call, _ *none) (*none, error) {
		remove := svc.DeleteBackend
		if c.args.flag("force", false) {
			remove = svc.ForceDeleteBackend
		}
		return nil, remove(ctx, fleet.BackendID(c.args.text("id")))
	})
}

func createBackend(ctx context.Context, svc BackendService, _ *call, in *admin.CreateBackendRequest) (*admin.Backend, error) {
	b := fleet.Backend{
		ID: fleet.BackendID(in.ID), DataCenter: fleet.DataCenterID(in.DataCenterID), Type: fleet.VolumeType(in.Type), Kind: fleet.BackendKind(in.Kind),
	}
	if b.Type == "" {
		b.Type = fleet.VolumeStandard
	}
	secrets := applyBackend(&in.BackendSettings, &b)
	return show(backendRecord)(svc.CreateBackend(ctx, b, secrets))
}

func updateBackend(ctx context.Context, svc BackendService, c *call, in *admin.UpdateBackendRequest) (*admin.Backend, error) {
	view, err := svc.Backend(ctx, fleet.BackendID(c.args.text("id")))
	if err != nil {
		return nil, err
	}
	secrets := applyBackend(&in.BackendSettings, &view.Backend)
	return show(backendRecord)(svc.UpdateBackend(ctx, view.Backend, secrets))
}

// apply changes a backend, and returns the keys that were given.
func applyBackend(in *admin.BackendSettings, b *fleet.Backend) fleet.BackendSecrets {
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

func backendRecord(v fleet.BackendView) admin.Backend {
	b := v.Backend
	out := admin.Backend{
		ID: string(b.ID), DataCenterID: string(b.DataCenter), Type: string(b.Type), Kind: string(b.Kind), StorageHost: v2.Text(b.StorageHost),
		StoragePath: v2.Text(b.StoragePath), Quota: "enforced", Closed: b.Closed, Volumes: v.Volumes, SizeGB: v.SizeGB, Host: v2.Text(v.Host),
		Problem: v2.Text(v.Problem), CreatedAt: v2.At(b.CreatedAt),
	}
	if b.Measured() {
		out.Quota = "measured"
	}
	if b.NFS != nil {
		out.NFS = &admin.NFSBackend{Server: b.NFS.Server, Export: b.NFS.Export, Options: b.NFS.Options}
	}
	if b.Ceph != nil {
		out.Ceph = &admin.CephBackend{
			Monitors: b.Ceph.Monitors, FileSystem: b.Ceph.FileSystem, Path: b.Ceph.Path, User: b.Ceph.User, AdminUser: b.Ceph.AdminUser,
		}
	}
	if b.Local != nil {
		out.Local = &admin.LocalBackend{Path: b.Local.Path}
	}
	return out
}

func exampleBackendSettings() admin.BackendSettings {
	ceph := exampleCeph()
	return admin.BackendSettings{Ceph: &ceph, Key: "placeholder", AdminKey: "placeholder"}
}

func exampleCeph() admin.CephBackend {
	return admin.CephBackend{Monitors: []string{"10.0.0.11:6789"}, FileSystem: "cephfs", Path: "/gantry", User: "gantry", AdminUser: "gantry-admin"}
}

func exampleBackend() admin.Backend {
	ceph := exampleCeph()
	return admin.Backend{
		ID: "ceph-nvme", DataCenterID: "EU-RO-1", Type: "STANDARD", Kind: "cephfs", Ceph: &ceph, Quota: "enforced", Volumes: 3, SizeGB: 300, Host: "h7d2k9s4f1g6j3",
		CreatedAt: exampleTime(0),
	}
}
