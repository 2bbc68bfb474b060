package rest

import (
	"context"
	"crypto/ecdh"
	"encoding/base64"
	"encoding/binary"
	"net/http"
	"strconv"
	"strings"

	"gantry/api/v2"

	"gantry/api/auth"
	"gantry/api/limit"
	"gantry/fleet"
)

const minRSABits = 1024

func (a *API) registerSSHKeys() {
	on(a, route{
		method: http.MethodGet, path: "/v2/account/ssh-keys", id: "getSshKeys", tag: "Account", summary: "Get the SSH keys",
		text:  "Returns the SSH public keys that pods made with startSsh get in PUBLIC_KEY.",
		scope: auth.Read(fleet.GroupAccount), limit: limit.PerAccount, status: http.StatusOK, out: exampleSSHKeys(),
	}, getSSHKeys)
	on(a, route{
		method: http.MethodPut, path: "/v2/account/ssh-keys", id: "putSshKeys", tag: "Account", summary: "Replace the SSH keys",
		text: "Replaces all SSH public keys of the account; an empty list removes them, and a key that is given twice is kept once. " +
			"Pods that exist keep what they were made with. " +
			"422: an entry is not a whole public key (errors names each as $.keys[i]), or all together have more than 32768 bytes ($.keys).",
		scope: auth.Write(fleet.GroupAccount), limit: limit.PerAccount, status: http.StatusOK, in: exampleSSHKeys(), out: exampleSSHKeys(),
	}, putSSHKeys)
}

func getSSHKeys(ctx context.Context, svc AccountService, c *call, _ *none) (*v2.SSHKeys, error) {
	keys, err := svc.SSHKeys(ctx, c.who)
	return &v2.SSHKeys{Keys: append([]string{}, keys...)}, err
}

func putSSHKeys(ctx context.Context, svc AccountService, c *call, in *v2.SSHKeys) (*v2.SSHKeys, error) {
	if err := svc.SetSSHKeys(ctx, c.who, in.Keys); err != nil {
		return nil, err
	}
	return getSSHKeys(ctx, svc, c, nil)
}

func checkSSHKeys(in *v2.SSHKeys) []string {
	var out []string
	for i, line := range in.Keys {
		at := "$.keys[" + strconv.Itoa(i) + "]: "
		switch {
		case strings.ContainsFunc(line, func(c rune) bool { return c < ' ' && c != '\t' || c == 0x7f }):
			out = append(out, at+"must not contain control characters")
		case !validSSHKey(line):
			out = append(out, at+"must be a whole public key of a kind that OpenSSH knows")
		}
	}
	return out
}

// validSSHKey reads the key's blob (RFC 4253 6.6, RFC 5656, RFC 8709, OpenSSH PROTOCOL.u2f), which names
// its kind once more. What the pattern of v2.SSHKeys let pass has two words at least.
func validSSHKey(line string) bool {
	kind, rest, _ := strings.Cut(line, " ")
	text, _, _ := strings.Cut(strings.ReplaceAll(rest, "\t", " "), " ")
	blob, err := base64.StdEncoding.Strict().DecodeString(text)
	if err != nil {
		return false
	}
	fields, ok := sshFields(blob)
	if !ok || len(fields) == 0 || string(fields[0]) != kind {
		return false
	}
	fields = fields[1:]
	curve, onCurve := map[string]ecdh.Curve{
		"ecdsa-sha2-nistp256": ecdh.P256(), "ecdsa-sha2-nistp384": ecdh.P384(), "ecdsa-sha2-nistp521": ecdh.P521(),
		"sk-ecdsa-sha2-nistp256@openssh.com": ecdh.P256(),
	}[kind]
	security := 0
	if strings.HasPrefix(kind, "sk-") {
		security = 1 // the application, as the last field
	}
	switch {
	case kind == "ssh-rsa":
		return len(fields) == 2 && len(fields[0]) > 0 && 8*len(fields[1]) >= minRSABits
	case kind == "ssh-ed25519", kind == "sk-ssh-ed25519@openssh.com":
		return len(fields) == 1+security && len(fields[0]) == 32
	case onCurve:
		if len(fields) != 2+security || !strings.HasSuffix(strings.TrimSuffix(kind, "@openssh.com"), "-"+string(fields[0])) {
			return false
		}
		_, err := curve.NewPublicKey(fields[1])
		return err == nil
	}
	return false
}

// sshFields splits a blob into its length-prefixed fields; at most 8.
func sshFields(blob []byte) ([][]byte, bool) {
	var out [][]byte
	for len(blob) > 0 {
		if len(blob) < 4 || len(out) == 8 {
			return nil, false
		}
		n := binary.BigEndian.Uint32(blob)
		blob = blob[4:]
		if uint64(n) > uint64(len(blob)) {
			return nil, false
		}
		out, blob = append(out, blob[:n]), blob[n:]
	}
	return out, true
}

func exampleSSHKeys() v2.SSHKeys {
	return v2.SSHKeys{Keys: []string{"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA me@laptop"}}
}
