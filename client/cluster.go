package client

import (
	"context"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"time"

	"gantry/api/admin"
	"gantry/api/v2"
)

// Cluster reads the schedulers of the cluster; for operators.
func (c *Client) Cluster(ctx context.Context) (Answer[admin.Cluster], error) {
	return call[admin.Cluster](ctx, c, http.MethodGet, "/admin/v1/cluster", nil, nil)
}

// CreateMemberToken makes a token with which one scheduler may join, once; for operators.
func (c *Client) CreateMemberToken(ctx context.Context, body admin.CreateMemberTokenRequest) (Answer[admin.JoinToken], error) {
	return call[admin.JoinToken](ctx, c, http.MethodPost, "/admin/v1/cluster/tokens", nil, body)
}

func memberPath(id string) string { return "/admin/v1/cluster/members/" + word(id) }

// PromoteMember gives a scheduler a vote; for operators.
func (c *Client) PromoteMember(ctx context.Context, id string) error {
	_, err := call[struct{}](ctx, c, http.MethodPost, memberPath(id)+"/promote", nil, nil)
	return err
}

// DemoteMember takes a scheduler's vote; for operators.
func (c *Client) DemoteMember(ctx context.Context, id string) error {
	_, err := call[struct{}](ctx, c, http.MethodPost, memberPath(id)+"/demote", nil, nil)
	return err
}

// RemoveMember takes a scheduler out for ever, with force although too few voters answer; for operators.
func (c *Client) RemoveMember(ctx context.Context, id string, force bool) error {
	query := url.Values{}
	if force {
		query.Set("force", "true")
	}
	_, err := call[struct{}](ctx, c, http.MethodDelete, memberPath(id), query, nil)
	return err
}

// TransferLeadership hands leadership to a voter; an empty id: to the most up-to-date one. For operators.
func (c *Client) TransferLeadership(ctx context.Context, id string) error {
	body := admin.TransferRequest{MemberID: id}
	_, err := call[struct{}](ctx, c, http.MethodPost, "/admin/v1/cluster/transfer", nil, body)
	return err
}

// NoteBackup tells the cluster of when a copy of the state is that is whole where it is kept, and answers of when the
// newest is; for operators.
func (c *Client) NoteBackup(ctx context.Context, savedAt time.Time) (Answer[admin.Backup], error) {
	return call[admin.Backup](ctx, c, http.MethodPost, "/admin/v1/backups", nil, admin.Backup{SavedAt: v2.At(savedAt)})
}

const snapshotType = "application/octet-stream"

// Snapshot streams a copy of the whole state; for operators. The stream ends with ctx; the caller closes it, and checks
// it: only its own checksum tells that it is whole.
func (c *Client) Snapshot(ctx context.Context) (io.ReadCloser, error) {
	var res *http.Response
	err := c.repeat(ctx, true, func() error {
		req, err := c.request(ctx, http.MethodGet, "/admin/v1/snapshot", nil, nil)
		if err != nil {
			return err
		}
		req.Header.Set("Accept", snapshotType)
		res, err = c.send(req) //nolint:bodyclose // the caller does
		return err
	})
	if err != nil {
		return nil, err
	}
	if kind, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type")); kind != snapshotType {
		drain(res)
		return nil, fmt.Errorf("save the snapshot: the answer of %s is none", c.Address())
	}
	return &fileStream{ctx: ctx, address: c.Address(), body: res.Body}, nil
}

// ConfirmClock sets the log's time to that of the leader's clock, which was seen at a time and found right. For
// operators.
func (c *Client) ConfirmClock(ctx context.Context, at time.Time) error {
	_, err := call[struct{}](ctx, c, http.MethodPost, "/admin/v1/cluster/clock", nil, map[string]time.Time{"time": at})
	return err
}
