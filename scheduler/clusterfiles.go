package scheduler

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/pem"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"gantry/fleet"
)

// purposeClusterKey is the purpose of the MAC that the SSH key of a cluster is made from.
const purposeClusterKey = "cluster ssh key"

// Where members find what concerns their cluster.
const (
	hostfilePath       = "/etc/gantry/hostfile"
	clusterKeyPath     = "/etc/gantry/ssh/id_ed25519"
	authorizedKeysPath = "/etc/gantry/ssh/authorized_keys"
	sshClientPath      = "/etc/ssh/ssh_config.d/00-gantry.conf"
	sshServerPath      = "/etc/ssh/sshd_config.d/00-gantry.conf"
)

// MemberSetup returns what a member of a cluster finds in its container: the names of all members, a hostfile, and what takes one
// member's root to another by SSH. It goes to the bound host and nowhere else.
func (s *Service) MemberSetup(p *fleet.Pod) (*fleet.MemberSetup, error) {
	c, err := s.clusterOf(p)
	if err != nil {
		return nil, err
	}
	key, err := s.clusterKey(c.cluster.ID)
	if err != nil {
		return nil, err
	}
	out := &fleet.MemberSetup{Hostname: fleet.NodeName(p.Rank), Fabric: p.Fabric != "", Files: []fleet.PodFile{
		{Path: hostfilePath, Text: fleet.Secret(hostfile(c.nodes, c.cluster.GPU.Count)), Mode: 0o644},
		{Path: clusterKeyPath, Text: openSSHKey(key), Mode: 0o600},
		{Path: authorizedKeysPath, Text: fleet.Secret(fmt.Sprintf("from=%q %s\n", c.cidr, authorizedKey(key))), Mode: 0o644},
		{Path: sshClientPath, Text: fleet.Secret(sshClientConfig(c.nodes)), Mode: 0o644},
		{Path: sshServerPath, Text: fleet.Secret(sshServerConfig(c.cidr.String(), c.variables(p))), Mode: 0o644},
	}}
	if c.cluster.Type == fleet.ClusterSlurm {
		files, err := s.slurmFiles(&c)
		if err != nil {
			return nil, err
		}
		out.Files = append(out.Files, files...)
	}
	for _, n := range c.nodes {
		out.Hosts += n.addr.String() + " " + strings.Join(n.names, " ") + "\n"
	}
	return out, nil
}

// clusterKey returns the SSH key of a cluster. It is stored nowhere: whoever has the seal key can make it again.
func (s *Service) clusterKey(id fleet.ClusterID) (ed25519.PrivateKey, error) {
	seed, err := s.Sealer.MAC(purposeClusterKey, []byte(id))
	if err != nil {
		return nil, err
	}
	return ed25519.NewKeyFromSeed(seed[:]), nil
}

// hostfile lists the members with their slots, as mpirun reads it.
func hostfile(nodes []node, slots int) string {
	var out strings.Builder
	for _, n := range nodes {
		fmt.Fprintf(&out, "%s slots=%d\n", n.names[0], slots)
	}
	return out.String()
}

// sshClientConfig has a member go to the others with the cluster's key. It asks nobody about their host keys, which images make anew at
// each start: in the cluster's network an address is one member's alone, and no other pod is in it.
func sshClientConfig(nodes []node) string {
	out := "Host"
	for _, n := range nodes {
		out += " " + strings.Join(n.names, " ") + " " + n.addr.String()
	}
	return out + "\n  IdentityFile " + clusterKeyPath +
		"\n  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n  GlobalKnownHostsFile /dev/null\n  LogLevel ERROR\n"
}

// plainValue is what sshd takes as a value without quotes.
var plainValue = regexp.MustCompile(`^[A-Za-z0-9._:/,=^-]*$`)

// sshServerConfig gives commands that come by SSH the variables of env, which only login shells have otherwise, and has a member take the
// cluster's key from its root, out of the cluster's network alone.
func sshServerConfig(cidr string, env map[string]string) string {
	out := "SetEnv"
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if plainValue.MatchString(env[name]) {
			out += " " + name + "=" + env[name]
		}
	}
	return out + "\nMatch User root Address " + cidr + "\n  AuthorizedKeysFile " + authorizedKeysPath + " .ssh/authorized_keys .ssh/authorized_keys2\n"
}

// sshText writes a text as the SSH protocol does: its length, then its bytes.
func sshText[T ~string | ~[]byte](out []byte, text T) []byte {
	return append(binary.BigEndian.AppendUint32(out, uint32(len(text))), text...) //nolint:gosec // few bytes
}

// publicBlob is a public key as the SSH protocol has it.
func publicBlob(key ed25519.PrivateKey) []byte {
	return sshText(sshText(nil, "ssh-ed25519"), []byte(key.Public().(ed25519.PublicKey))) //nolint:forcetypeassert // always is
}

// authorizedKey is a public key as a line of an authorized_keys file.
func authorizedKey(key ed25519.PrivateKey) string {
	return "ssh-ed25519 " + base64.StdEncoding.EncodeToString(publicBlob(key)) + " gantry-cluster"
}

// openSSHKey writes a private key as OpenSSH keeps it, without a passphrase (PROTOCOL.key of OpenSSH).
func openSSHKey(key ed25519.PrivateKey) fleet.Secret {
	const block = 8
	public := publicBlob(key)
	check := sha256.Sum256(key) // any four bytes, twice: by them a reader sees that the passphrase was right
	inner := append(slices.Clone(check[:4]), check[:4]...)
	inner = append(inner, public...)
	inner = sshText(sshText(inner, []byte(key)), "gantry-cluster")
	for i := byte(1); len(inner)%block != 0; i++ {
		inner = append(inner, i)
	}
	out := []byte("openssh-key-v1\x00")
	out = sshText(sshText(sshText(out, "none"), "none"), "")
	out = binary.BigEndian.AppendUint32(out, 1)
	out = sshText(sshText(out, public), inner)
	return fleet.Secret(pem.EncodeToMemory(&pem.Block{Type: "OPENSSH PRIVATE KEY", Bytes: out}))
}
