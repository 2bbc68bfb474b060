package rest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// sshLine writes a public key with the fields as an SSH client does.
func sshLine(kind string, fields ...[]byte) string {
	var blob []byte
	for _, f := range slices.Concat([][]byte{[]byte(kind)}, fields) {
		blob = binary.BigEndian.AppendUint32(blob, uint32(len(f)))
		blob = append(blob, f...)
	}
	return kind + " " + base64.StdEncoding.EncodeToString(blob)
}

func TestSSHKeyKinds(t *testing.T) {
	point := func(c elliptic.Curve) []byte {
		key, err := ecdsa.GenerateKey(c, rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		raw, err := key.PublicKey.Bytes()
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	p256, app, seed, e := point(elliptic.P256()), []byte("ssh:"), make([]byte, 32), []byte{1, 0, 1}
	off := slices.Clone(p256)
	off[len(off)-1] ^= 1
	modulus := func(n int) []byte { return append([]byte{0}, slices.Repeat([]byte{0xab}, n)...) }
	for name, row := range map[string]struct {
		line string
		good bool
	}{
		"ed25519":              {sshLine("ssh-ed25519", seed), true},
		"with comment":         {sshLine("ssh-ed25519", seed) + " me@laptop and more", true},
		"comment after tab":    {sshLine("ssh-ed25519", seed) + "\tme", true},
		"rsa":                  {sshLine("ssh-rsa", e, modulus(256)), true},
		"rsa that is too weak": {sshLine("ssh-rsa", e, modulus(96)), false},
		"rsa without modulus":  {sshLine("ssh-rsa", e), false},
		"p256":                 {sshLine("ecdsa-sha2-nistp256", []byte("nistp256"), p256), true},
		"p384":                 {sshLine("ecdsa-sha2-nistp384", []byte("nistp384"), point(elliptic.P384())), true},
		"p521":                 {sshLine("ecdsa-sha2-nistp521", []byte("nistp521"), point(elliptic.P521())), true},
		"point off the curve":  {sshLine("ecdsa-sha2-nistp256", []byte("nistp256"), off), false},
		"curve of another":     {sshLine("ecdsa-sha2-nistp256", []byte("nistp384"), p256), false},
		"sk ed25519":           {sshLine("sk-ssh-ed25519@openssh.com", seed, app), true},
		"sk p256":              {sshLine("sk-ecdsa-sha2-nistp256@openssh.com", []byte("nistp256"), p256, app), true},
		"sk without its field": {sshLine("sk-ssh-ed25519@openssh.com", seed), false},
		"short ed25519":        {sshLine("ssh-ed25519", seed[:31]), false},
		"field too many":       {sshLine("ssh-ed25519", seed, app), false},
		"dsa":                  {sshLine("ssh-dss", e, e, e, e), false},
		"certificate":          {sshLine("ssh-ed25519-cert-v01@openssh.com", seed), false},
		"no fields":            {"ssh-ed25519 AAAA", false},
		"empty blob":           {"ssh-ed25519 ====", false},
		"length beyond":        {"ssh-ed25519 " + base64.StdEncoding.EncodeToString([]byte{255, 255, 255, 255, 1}), false},
		"nothing":              {"", false},
	} {
		if got := validSSHKey(row.line); got != row.good {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestSSHKeyReadsAnything cuts and changes good keys: nothing panics, and what is taken names its kind twice.
func TestSSHKeyReadsAnything(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		kind := rapid.SampledFrom([]string{"ssh-ed25519", "ssh-rsa", "ecdsa-sha2-nistp256", "sk-ssh-ed25519@openssh.com"}).Draw(t, "kind")
		line := sshLine(kind, rapid.SliceOfN(rapid.SliceOfN(rapid.Byte(), 0, 200), 0, 4).Draw(t, "fields")...)
		line = line[:rapid.IntRange(0, len(line)).Draw(t, "length")]
		if !validSSHKey(line) {
			return
		}
		_, text, _ := strings.Cut(line, " ")
		blob, err := base64.StdEncoding.DecodeString(text)
		if err != nil || !strings.Contains(string(blob), kind) {
			t.Fatalf("taken: %q", line)
		}
	})
}
