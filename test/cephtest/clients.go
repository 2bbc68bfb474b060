package cephtest

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strings"
	"time"
)

// AddClient makes a client with rights on the metadata server, like "allow rw path=/gantry", and returns its secret.
func (c *Cluster) AddClient(ctx context.Context, client, mds string) (string, error) {
	out, err := c.Ceph(ctx, append([]string{"auth", "get-or-create-key", "client." + client}, clientCaps(mds)...)...)
	if err != nil {
		return "", err
	}
	key := strings.TrimSpace(string(out))
	c.mu.Lock()
	defer c.mu.Unlock()
	c.keys[client] = key
	return key, nil
}

// Revoke takes a client's key away, and its sessions: also what is mounted with the key fails then. Without the latter it would
// go on for an hour, with what it was given for its key before.
func (c *Cluster) Revoke(ctx context.Context, client string) error {
	if _, err := c.Ceph(ctx, "auth", "rm", "client."+client); err != nil {
		return err
	}
	return c.Evict(ctx, client)
}

// Evict ends the sessions of a client and puts them on the blocklist, as the cluster does with one that was away for too long.
func (c *Cluster) Evict(ctx context.Context, client string) error {
	var sessions []struct {
		ID       int64 `json:"id"`
		Metadata struct {
			Entity string `json:"entity_id"`
		} `json:"client_metadata"`
	}
	if err := c.ask(ctx, MDS, map[string]any{"prefix": "session ls"}, &sessions); err != nil {
		return err
	}
	for _, s := range sessions {
		if s.Metadata.Entity != client {
			continue
		}
		command := map[string]any{"prefix": "session evict", "filters": []string{fmt.Sprint("id=", s.ID)}}
		if err := c.ask(ctx, MDS, command, nil); err != nil {
			return err
		}
	}
	return nil
}

// ask sends a command to a daemon's socket. The answer is its length and JSON.
func (c *Cluster) ask(ctx context.Context, kind string, command map[string]any, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, toolTime)
	defer cancel()
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", c.path(kind+".asok"))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // all was read
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	command["format"] = "json"
	text, err := json.Marshal(command)
	if err == nil {
		_, err = conn.Write(append(text, 0))
	}
	var size uint32
	if err == nil {
		err = binary.Read(conn, binary.BigEndian, &size)
	}
	if err == nil {
		text, err = io.ReadAll(io.LimitReader(conn, int64(size)))
	}
	if err == nil && answer != nil {
		err = json.Unmarshal(text, answer)
	}
	if err != nil {
		return fmt.Errorf("ceph-%s: %v: %w", kind, command["prefix"], err)
	}
	return nil
}
