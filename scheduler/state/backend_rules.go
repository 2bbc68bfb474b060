package state

import (
	"cmp"
	"net/netip"
	"path"
	"regexp"
	"strconv"
	"strings"

	"gantry/fleet"
)

// The bounds of a backend's fields.
const (
	maxMonitors      = 16
	maxPath          = 1024 // bytes
	maxOptions       = 512  // bytes
	maxBackendSealed = 4096 // bytes
	maxHostName      = 253  // bytes
)

var (
	backendID  = regexp.MustCompile(`^[a-z][a-z0-9-]{0,62}$`)
	cephName   = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)
	plainPath  = regexp.MustCompile(`^/[A-Za-z0-9._+@=/-]*$`)
	hostLabel  = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?$`)
	nfsVersion = regexp.MustCompile(`^4(\.[0-2])?$`)
	plainValue = regexp.MustCompile(`^[A-Za-z0-9]{1,32}$`)
)

// nfsOptions are the options that a backend may set. Others would change what pods may do, who they are for the
// server, or which server it is.
var nfsOptions = map[string]*regexp.Regexp{
	"vers": nfsVersion, "nfsvers": nfsVersion, "minorversion": plainValue, "proto": plainValue, "port": plainValue,
	"rsize": plainValue, "wsize": plainValue, "timeo": plainValue, "retrans": plainValue, "retry": plainValue,
	"nconnect": plainValue, "max_connect": plainValue, "acregmin": plainValue, "acregmax": plainValue,
	"acdirmin": plainValue, "acdirmax": plainValue, "actimeo": plainValue, "lookupcache": plainValue,
	"local_lock": plainValue, "xprtsec": plainValue,
	"hard": nil, "soft": nil, "softerr": nil, "softreval": nil, "nosoftreval": nil, "ac": nil, "noac": nil,
	"cto": nil, "nocto": nil, "resvport": nil, "noresvport": nil, "sharecache": nil, "nosharecache": nil,
	"trunkdiscovery": nil, "notrunkdiscovery": nil, "migration": nil, "nomigration": nil,
	"noatime": nil, "nodiratime": nil, "relatime": nil,
}

// checkBackend refuses a backend that cannot be meant, and gives one of kind local the path that is its root.
func checkBackend(b *fleet.Backend) error {
	switch {
	case !backendID.MatchString(string(b.ID)):
		return fleet.Invalid("$.id", "must be 1 to 63 lower-case letters, digits and '-', beginning with a letter")
	case !knownKind(b.Kind):
		return fleet.Invalid("$.kind", "must be nfs, cephfs or local")
	case (b.NFS != nil) != (b.Kind == fleet.BackendNFS):
		return fleet.Invalid("$.nfs", "must be set for kind nfs alone")
	case (b.Ceph != nil) != (b.Kind == fleet.BackendCeph):
		return fleet.Invalid("$.cephfs", "must be set for kind cephfs alone")
	case (b.Local != nil) != (b.Kind == fleet.BackendLocal):
		return fleet.Invalid("$.local", "must be set for kind local alone")
	case len(b.Sealed) > maxBackendSealed:
		return fleet.Invalid("$.secrets", "are too large")
	}
	return cmp.Or(checkVolumeType(b.Type), checkNFS(b.NFS), checkCeph(b), checkStorage(b))
}

func knownKind(kind fleet.BackendKind) bool {
	return kind == fleet.BackendNFS || kind == fleet.BackendCeph || kind == fleet.BackendLocal
}

func checkNFS(n *fleet.NFSBackend) error {
	switch {
	case n == nil:
		return nil
	case !isHost(n.Server):
		return fleet.Invalid("$.nfs.server", "must be a host name or an IP address")
	case len(n.Options) > maxOptions:
		return fleet.Invalid("$.nfs.options", "must have at most 512 bytes")
	}
	if err := checkPath("$.nfs.export", n.Export); err != nil || n.Options == "" {
		return err
	}
	for option := range strings.SplitSeq(n.Options, ",") {
		name, value, valued := strings.Cut(option, "=")
		form, known := nfsOptions[name]
		switch {
		case !known:
			return fleet.Invalid("$.nfs.options", "may not have "+strconv.QuoteToASCII(name))
		case valued != (form != nil) || valued && !form.MatchString(value):
			return fleet.Invalid("$.nfs.options", "has no such value of "+name)
		}
	}
	return nil
}

func checkCeph(b *fleet.Backend) error {
	c := b.Ceph
	switch {
	case c == nil:
		return nil
	case len(c.Monitors) == 0 || len(c.Monitors) > maxMonitors:
		return fleet.Invalid("$.cephfs.monitors", "must be 1 to 16")
	case !cephName.MatchString(c.FileSystem):
		return fleet.Invalid("$.cephfs.fileSystem", "must be the name of a file system")
	case !isCephUser(c.User):
		return fleet.Invalid("$.cephfs.user", "must be the name of a user, without client.")
	case !isCephUser(c.AdminUser) || c.AdminUser == c.User:
		return fleet.Invalid("$.cephfs.adminUser", "must be the name of another user, without client.")
	case len(b.Sealed) == 0:
		return fleet.Invalid("$.cephfs.key", "must be set")
	}
	for _, monitor := range c.Monitors {
		if !isAddress(monitor) {
			return fleet.Invalid("$.cephfs.monitors", "each must be host:port")
		}
	}
	return checkPath("$.cephfs.path", c.Path)
}

func isCephUser(name string) bool {
	return cephName.MatchString(name) && !strings.HasPrefix(name, "client.")
}

// checkStorage checks which host has the data in a directory of its own.
func checkStorage(b *fleet.Backend) error {
	if b.Local != nil {
		switch {
		case b.Local.Path == "/":
			return fleet.Invalid("$.local.path", "must not be /")
		case b.StorageHost == "":
			return fleet.Invalid("$.storageHost", "must be set for kind local")
		case b.StoragePath != "" && b.StoragePath != b.Local.Path:
			return fleet.Invalid("$.storagePath", "must be the path of kind local, or empty")
		}
		b.StoragePath = b.Local.Path
		return checkPath("$.local.path", b.Local.Path)
	}
	switch {
	case b.StoragePath == "":
		return nil
	case b.Kind != fleet.BackendNFS:
		return fleet.Invalid("$.storagePath", "may be set for kinds nfs and local alone")
	case b.StorageHost == "":
		return fleet.Invalid("$.storagePath", "needs a storage host")
	case b.StoragePath == "/":
		return fleet.Invalid("$.storagePath", "must not be /")
	}
	return checkPath("$.storagePath", b.StoragePath)
}

// checkPath refuses what is no absolute path in its shortest form, of characters that mean nothing to any mount.
func checkPath(field, p string) error {
	if len(p) > maxPath || !plainPath.MatchString(p) || path.Clean(p) != p {
		return fleet.Invalid(field, "must be an absolute path in its shortest form, of letters, digits and . _ + @ = -")
	}
	return nil
}

// isAddress reports whether a text is a host with a port, of which an IPv6 address is in brackets.
func isAddress(text string) bool {
	if addr, err := netip.ParseAddrPort(text); err == nil {
		return addr.Port() > 0 && addr.Addr().Zone() == ""
	}
	host, port, _ := strings.Cut(text, ":")
	n, err := strconv.ParseUint(port, 10, 16)
	return err == nil && n > 0 && isHost(host)
}

// isHost reports whether a text is an IP address or a host name.
func isHost(text string) bool {
	if addr, err := netip.ParseAddr(text); err == nil {
		return addr.Zone() == ""
	}
	if text == "" || len(text) > maxHostName {
		return false
	}
	for label := range strings.SplitSeq(text, ".") {
		if !hostLabel.MatchString(label) {
			return false
		}
	}
	return true
}
