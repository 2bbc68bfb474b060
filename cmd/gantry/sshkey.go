package main

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"

	"gantry/api/v2"
	"gantry/client"
)

type sshKeyCmd struct {
	List   sshKeyListCmd   `cmd:"" help:"List the keys."`
	Add    sshKeyAddCmd    `cmd:"" help:"Add public keys."`
	Remove sshKeyRemoveCmd `cmd:"" help:"Remove keys."`
	Set    sshKeySetCmd    `cmd:"" help:"Replace all keys."`
}

type sshKeyListCmd struct{}

// Run lists keys.
func (sshKeyListCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	keys, err := c.SSHKeys(ctx)
	if err != nil {
		return err
	}
	return a.showSSHKeys(keys)
}

func (a *app) showSSHKeys(keys client.Answer[v2.SSHKeys]) error {
	return a.show(keys.Raw, func() string {
		var rows [][]string
		for _, line := range keys.Value.Keys {
			k := parseSSHKey(line)
			rows = append(rows, []string{orDash(k.kind), orDash(k.fingerprint), orDash(k.comment)})
		}
		return table([]string{"TYPE", "FINGERPRINT", "COMMENT"}, rows)
	})
}

// sshKey is what a public key says of itself.
type sshKey struct{ line, kind, fingerprint, comment string }

// parseSSHKey reads a line as OpenSSH writes it; what is not one has no fingerprint.
func parseSSHKey(line string) sshKey {
	k := sshKey{line: strings.TrimSpace(line)}
	words := strings.Fields(k.line)
	for i := 0; i+1 < len(words); i++ { // options may come before
		blob, err := base64.StdEncoding.DecodeString(words[i+1])
		if err != nil || len(blob) < 4 || !strings.HasPrefix(string(blob[4:]), words[i]) {
			continue
		}
		sum := sha256.Sum256(blob)
		k.kind, k.comment = words[i], strings.Join(words[i+2:], " ")
		k.fingerprint = "SHA256:" + base64.RawStdEncoding.EncodeToString(sum[:])
		break
	}
	return k
}

const maxKeyFile = 1 << 20 // bytes

// readSSHKeys reads public keys from files, one in each line.
func (a *app) readSSHKeys(paths []string) ([]string, error) {
	var out []string
	for _, path := range paths {
		text, err := a.readFile("key file", path, maxKeyFile)
		if err != nil {
			return nil, err
		}
		if strings.Contains(text, "PRIVATE KEY") {
			return nil, usage("%s holds a private key: give the file with the public one, which ends in .pub", path)
		}
		n := 0
		for line := range strings.Lines(text) {
			n++
			if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
				continue
			}
			k := parseSSHKey(line)
			if k.fingerprint == "" {
				return nil, usage("%s: line %d is no public SSH key", path, n)
			}
			out = append(out, k.line)
		}
	}
	return out, nil
}

type sshKeyAddCmd struct {
	Files []string `arg:"" name:"file" placeholder:"FILE" help:"Files with public keys, one in each line; - is standard input."`
}

// Run adds keys to those that are there.
func (cmd sshKeyAddCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	more, err := a.readSSHKeys(cmd.Files)
	if err != nil {
		return err
	}
	return a.changeSSHKeys(ctx, c, func(keys []string) ([]string, error) {
		have := map[string]bool{}
		for _, line := range keys {
			have[parseSSHKey(line).fingerprint] = true
		}
		for _, line := range more {
			if k := parseSSHKey(line); !have[k.fingerprint] {
				have[k.fingerprint] = true
				keys = append(keys, line)
			}
		}
		return keys, nil
	})
}

// changeSSHKeys reads the account's keys, changes them and writes them back, unless nothing changed.
func (a *app) changeSSHKeys(ctx context.Context, c *client.Client, change func([]string) ([]string, error)) error {
	keys, err := c.SSHKeys(ctx)
	if err != nil {
		return err
	}
	next, err := change(slices.Clone(keys.Value.Keys))
	if err != nil {
		return err
	}
	if !slices.Equal(next, keys.Value.Keys) {
		if keys, err = c.SetSSHKeys(ctx, next); err != nil {
			return err
		}
	}
	return a.showSSHKeys(keys)
}

type sshKeyRemoveCmd struct {
	Keys []string `arg:"" name:"key" placeholder:"KEY" help:"Fingerprints or comments, as ssh-key list shows them."`
}

// Run removes keys.
func (cmd sshKeyRemoveCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	return a.changeSSHKeys(ctx, c, func(keys []string) ([]string, error) {
		for _, word := range cmd.Keys {
			is := func(line string) bool {
				k := parseSSHKey(line)
				return word != "" && (word == k.fingerprint || word == k.comment || word == k.line)
			}
			var hits int
			for _, line := range keys {
				if is(line) {
					hits++
				}
			}
			switch hits {
			case 0:
				return nil, &exitError{exitNotFound, fmt.Errorf("no key has the fingerprint or comment %s", word)}
			case 1:
				keys = slices.DeleteFunc(keys, is)
			default:
				return nil, usage("%d keys have the comment %s: say which by its fingerprint", hits, word)
			}
		}
		return keys, nil
	})
}

type sshKeySetCmd struct {
	Files []string `arg:"" optional:"" name:"file" placeholder:"FILE" help:"Files with public keys, one in each line; - is standard input."`
	None  bool     `help:"Leave no key."`
}

// Run replaces all keys.
func (cmd sshKeySetCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	if cmd.None == (len(cmd.Files) > 0) {
		return usage("say either files or --none")
	}
	keys, err := a.readSSHKeys(cmd.Files)
	if err != nil {
		return err
	}
	if len(keys) == 0 && !cmd.None {
		return usage("the files hold no key; --none removes all")
	}
	now, err := c.SetSSHKeys(ctx, keys)
	if err != nil {
		return err
	}
	return a.showSSHKeys(now)
}
