package volume

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	"golang.org/x/sys/unix"
)

// mountNFS mounts an export of an NFSv4 server. Who waits for it waits for as long as the server is away
// (nfs(5), "hard"), but can be killed.
func mountNFS(ctx context.Context, in mountIn) error {
	if !kernelHas(ctx, "nfs4", "nfsv4") {
		return fmt.Errorf("mount NFS: the kernel cannot: %w", unix.ENODEV)
	}
	addr, err := resolve(ctx, in.Server)
	if err != nil {
		return err
	}
	flags, options, version := nfsOptions(in.Options)
	options = append(options, "addr="+addr)
	if own := ownAddress(ctx, addr); own != "" {
		options = append(options, "clientaddr="+own)
	}
	versions := []string{"vers=4.2", "vers=4.1", "vers=4.0"}
	if version != "" {
		versions = []string{version}
	}
	server := in.Server
	if strings.Contains(server, ":") {
		server = "[" + strings.Trim(server, "[]") + "]"
	}
	for _, version := range versions {
		data := strings.Join(append([]string{version, "hard"}, options...), ",")
		err = unix.Mount(server+":"+in.Path, in.At, "nfs4", flags, data)
		if !errors.Is(err, unix.EPROTONOSUPPORT) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("mount NFS: %w", err)
	}
	return nil
}

// nfsOptions splits an operator's options: those of every mount, those of NFS, and the version if there is one.
func nfsOptions(text string) (flags uintptr, options []string, version string) {
	flags = unix.MS_NODEV | unix.MS_NOSUID
	for option := range strings.SplitSeq(text, ",") {
		key, value, _ := strings.Cut(strings.TrimSpace(option), "=")
		switch {
		case key == "" || ignoredNFS[key] || strings.HasPrefix(key, "x-"):
		case genericFlags[key] != 0:
			flags |= genericFlags[key]
		case key == "vers" || key == "nfsvers":
			version = "vers=" + value
		default:
			options = append(options, strings.TrimSpace(option))
		}
	}
	return flags, options, version
}

// genericFlags are the options that the kernel takes as flags. Nothing takes nodev and nosuid away.
var genericFlags = map[string]uintptr{
	"noatime": unix.MS_NOATIME, "nodiratime": unix.MS_NODIRATIME, "relatime": unix.MS_RELATIME, "noexec": unix.MS_NOEXEC,
	"nodev": unix.MS_NODEV, "nosuid": unix.MS_NOSUID, "sync": unix.MS_SYNCHRONOUS, "ro": unix.MS_RDONLY,
}

// ignoredNFS mean something to mount(8) alone, or are decided here.
var ignoredNFS = map[string]bool{
	"defaults": true, "rw": true, "auto": true, "noauto": true, "_netdev": true, "nofail": true, "bg": true, "fg": true, "retry": true,
	"dev": true, "suid": true, "exec": true, "user": true, "nouser": true, "users": true, "async": true, "atime": true,
	"addr": true, "clientaddr": true, "hard": true, "soft": true, "softerr": true,
}

// resolve returns a numeric address.
func resolve(ctx context.Context, host string) (string, error) {
	list, err := net.DefaultResolver.LookupHost(ctx, strings.Trim(host, "[]"))
	if err == nil && len(list) == 0 {
		err = errors.New("the name has no address")
	}
	if err != nil {
		return "", fmt.Errorf("find the server: %w", errors.Join(unix.EHOSTUNREACH, err))
	}
	return list[0], nil
}

// ownAddress is the host's address on the way to the server; empty: not known, and only NFSv4.0 needs it.
func ownAddress(ctx context.Context, server string) string {
	conn, err := (&net.Dialer{}).DialContext(ctx, "udp", net.JoinHostPort(server, "2049")) // nothing is sent
	if err != nil {
		return ""
	}
	defer func() { _ = conn.Close() }()
	host, _, err := net.SplitHostPort(conn.LocalAddr().String())
	if err != nil {
		return ""
	}
	return host
}
