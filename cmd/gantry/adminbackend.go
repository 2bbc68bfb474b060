package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"gantry/api/admin"
	"gantry/api/v2"
	"gantry/client"
	"gantry/fleet"
)

type adminBackendCmd struct {
	List   listCmd               `cmd:"" help:"List the backends of network volumes."`
	Get    getCmd                `cmd:"" help:"Show a backend."`
	Add    adminBackendAddCmd    `cmd:"" help:"Add storage for network volumes: NFS, CephFS or a directory."`
	Update adminBackendUpdateCmd `cmd:"" help:"Change a backend: its servers, its keys, or whether it gets new volumes."`
	Delete adminBackendDeleteCmd `cmd:"" help:"Delete backends that have no volumes."`
}

var backends = noun[admin.Backend, admin.BackendList]{
	kind: "backend", bare: true, all: (*client.Client).Backends, one: (*client.Client).Backend, remove: (*client.Client).DeleteBackend,
	items:   func(l admin.BackendList) []admin.Backend { return l.Backends },
	thing:   func(b admin.Backend) thing { return thing{id: b.ID} },
	columns: []string{"ID", "DATA CENTER", "TIER", "KIND", "WHERE", "QUOTA", "OPEN", "VOLUMES", "SIZE", "LOOKED AFTER BY", "PROBLEM"},
	row: func(b admin.Backend, _ time.Time) []string {
		return []string{
			b.ID, b.DataCenterID, b.Type, b.Kind, placeText(b), b.Quota, yes(!b.Closed), fmt.Sprint(b.Volumes), fmt.Sprintf("%d GB", b.SizeGB),
			orDash(b.Host), orDash(b.Problem),
		}
	},
}

// placeText says where a backend's volumes are.
func placeText(b admin.Backend) string {
	switch {
	case b.NFS != nil:
		return b.NFS.Server + ":" + b.NFS.Export
	case b.Ceph != nil:
		return b.Ceph.FileSystem + ":" + b.Ceph.Path
	case b.Local != nil:
		return b.Local.Path
	}
	return "-"
}

// backendFlags are what can be said of a backend.
type backendFlags struct {
	NFS         string   `name:"nfs" placeholder:"SERVER:/EXPORT" help:"An NFSv4 server and the directory that it exports."`
	NFSOptions  string   `name:"nfs-options" placeholder:"OPTIONS" help:"Mount options of nfs(5) in place of the defaults, such as nconnect=4."`
	Monitor     []string `sep:"none" placeholder:"HOST:PORT" help:"Monitor of the Ceph cluster. May be repeated."`
	CephFS      string   `name:"cephfs" placeholder:"NAME:/PATH" help:"A Ceph file system and the directory in it."`
	User        string   `placeholder:"NAME" help:"Ceph user with whose key every host mounts; it must not be allowed to set quotas."`
	KeyFile     string   `placeholder:"FILE" help:"File with the key of --user; - is standard input. A key is never an argument."`
	AdminUser   string   `placeholder:"NAME" help:"Ceph user that may set quotas, of hosts with the role storage."`
	AdminKey    string   `name:"admin-key-file" placeholder:"FILE" help:"File with the key of --admin-user."`
	Local       string   `placeholder:"PATH" help:"A directory of every host, for development; needs --storage-host."`
	StorageHost *string  `placeholder:"HOST" help:"The one host that makes and deletes volumes, by id or name; empty: any with the role storage."`
	StoragePath *string  `placeholder:"PATH" help:"The backend's root as a directory of --storage-host, which limits the size of volumes in it; empty: none."`
}

// body makes the request of the flags.
func (f backendFlags) body(ctx context.Context, a *app, c *client.Client) (admin.BackendSettings, error) {
	out := admin.BackendSettings{StorageHost: f.StorageHost, StoragePath: f.StoragePath}
	if f.StorageHost != nil && *f.StorageHost != "" {
		id, err := hosts.id(ctx, c, *f.StorageHost)
		if err != nil {
			return out, err
		}
		out.StorageHost = &id
	}
	if f.NFS != "" {
		server, export, ok := cutPlace(f.NFS)
		if !ok {
			return out, usage("--nfs must be SERVER:/EXPORT, such as nfs-1.example:/srv/volumes")
		}
		if inner, ok := strings.CutPrefix(server, "["); ok { // an IPv6 address
			server = strings.TrimSuffix(inner, "]")
		}
		out.NFS = &admin.NFSBackend{Server: server, Export: export, Options: f.NFSOptions}
	} else if f.NFSOptions != "" {
		return out, usage("--nfs-options goes with --nfs")
	}
	if f.CephFS != "" {
		name, path, ok := cutPlace(f.CephFS)
		if !ok {
			return out, usage("--cephfs must be NAME:/PATH, such as cephfs:/gantry")
		}
		if len(f.Monitor) == 0 || f.User == "" || f.AdminUser == "" {
			return out, usage("--cephfs goes with --monitor, --user and --admin-user")
		}
		out.Ceph = &admin.CephBackend{Monitors: f.Monitor, FileSystem: name, Path: path, User: f.User, AdminUser: f.AdminUser}
	} else if len(f.Monitor) > 0 || f.User != "" || f.AdminUser != "" {
		return out, usage("--monitor, --user and --admin-user go with --cephfs")
	}
	if f.Local != "" {
		out.Local = &admin.LocalBackend{Path: f.Local}
	}
	var err error
	if out.Key, err = a.keyFile("--key-file", f.KeyFile); err == nil {
		out.AdminKey, err = a.keyFile("--admin-key-file", f.AdminKey)
	}
	return out, err
}

// cutPlace splits NAME:/PATH; a name may have colons, as IPv6 addresses do.
func cutPlace(text string) (name, path string, ok bool) {
	i := strings.Index(text, ":/")
	if i <= 0 {
		return "", "", false
	}
	return text[:i], text[i+1:], true
}

const maxCephKey = 4 << 10 // bytes

func (a *app) keyFile(flag, path string) (v2.Hidden, error) {
	if path == "" {
		return "", nil
	}
	text, err := a.readFile(flag, path, maxCephKey)
	if err != nil {
		return "", err
	}
	if text = strings.TrimSpace(text); text == "" {
		return "", usage("%s: the file is empty", flag)
	}
	return v2.Hidden(text), nil
}

type adminBackendAddCmd struct {
	ID         string `arg:"" placeholder:"ID" help:"Name of the backend, which never changes: lower-case letters, digits and '-'."`
	DataCenter string `required:"" placeholder:"ID" help:"Data center whose hosts mount it."`
	Type       string `placeholder:"STANDARD" help:"Tier of its volumes: STANDARD or HIGH_PERFORMANCE."`
	backendFlags
}

// Run adds a backend.
func (cmd adminBackendAddCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	kinds := 0
	for _, given := range []string{cmd.NFS, cmd.CephFS, cmd.Local} {
		if given != "" {
			kinds++
		}
	}
	if kinds != 1 {
		return usage("say one of --nfs, --cephfs and --local")
	}
	settings, err := cmd.body(ctx, a, c)
	if err != nil {
		return err
	}
	body := admin.CreateBackendRequest{ID: cmd.ID, DataCenterID: cmd.DataCenter, Type: cmd.Type, BackendSettings: settings}
	switch {
	case body.NFS != nil:
		body.Kind = string(fleet.BackendNFS)
	case body.Ceph != nil:
		body.Kind = string(fleet.BackendCeph)
	default:
		body.Kind = string(fleet.BackendLocal)
	}
	backend, err := c.CreateBackend(ctx, body)
	return backends.show(a, backend, err)
}

type adminBackendUpdateCmd struct {
	Backend string `arg:"" placeholder:"BACKEND" help:"Id of the backend."`
	backendFlags
	Closed *bool `negatable:"" help:"It gets no new volumes."`
}

// Run changes a backend.
func (cmd adminBackendUpdateCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	body, err := cmd.body(ctx, a, c)
	if err != nil {
		return err
	}
	body.Closed = cmd.Closed
	if body == (admin.BackendSettings{}) {
		return usage("say what to change")
	}
	return backends.on(ctx, c, cmd.Backend, func(id string) error {
		backend, err := c.UpdateBackend(ctx, id, admin.UpdateBackendRequest{BackendSettings: body})
		return backends.show(a, backend, err)
	})
}

type adminBackendDeleteCmd struct {
	Backends []string `arg:"" name:"backend" placeholder:"BACKEND" help:"Ids of backends."`
	Force    bool     `help:"The storage is lost: forget volumes that are being deleted on it. Those that somebody has keep the backend even so."`
}

// Run deletes backends.
func (cmd adminBackendDeleteCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	remove := (*client.Client).DeleteBackend
	if cmd.Force {
		remove = (*client.Client).ForceDeleteBackend
	}
	forced := backends
	forced.remove = remove
	return forced.delete(ctx, a, c, cmd.Backends, confirmed{})
}

type hostRoleCmd struct {
	hostRef
	Roles []string `arg:"" optional:"" name:"role" placeholder:"ROLE" help:"storage makes and deletes network volumes; s3 serves their files over S3."`
	None  bool     `help:"Remove all roles: the host only runs pods."`
}

// Run sets the roles of a host.
func (cmd hostRoleCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	if cmd.None == (len(cmd.Roles) > 0) {
		return usage("say the roles of the host, or --none")
	}
	return hosts.on(ctx, c, cmd.Host, func(id string) error {
		host, err := c.SetHostRoles(ctx, id, cmd.Roles)
		return reply(a, host, err, func(h admin.Host) string {
			return fmt.Sprintf("%s (%s) has the roles: %s\n", printable(h.ID), printable(h.Name), orDash(printable(strings.Join(h.Roles, ", "))))
		})
	})
}
