package client

import (
	"context"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"time"
)

// Cluster is the control plane as a whole.
type Cluster struct {
	ID      string   `json:"id"`
	Level   uint64   `json:"level"`
	Lineage uint64   `json:"lineage"`
	Members []Member `json:"members"`
	Clock   Clock    `json:"clock"`
}

// Clock is the time as the leader and the log have it.
type Clock struct {
	Time        time.Time  `json:"time"`    // by the leader's clock
	LogTime     time.Time  `json:"logTime"` // by which everything is charged and recorded
	Held        string     `json:"held"`    // why nothing final is done; empty: it is
	HeldSince   *time.Time `json:"heldSince"`
	LeapSeconds float64    `json:"leapSeconds"` // the most that the two may be apart
}

// Member is one scheduler.
type Member struct {
	ID        string     `json:"id"`
	Name      string     `json:"name"`
	Address   string     `json:"address"`
	Voter     bool       `json:"voter"`    // at present
	NonVoter  bool       `json:"nonVoter"` // until it is promoted
	Leader    bool       `json:"leader"`
	Reachable bool       `json:"reachable"`
	Applied   uint64     `json:"applied"`
	Lag       uint64     `json:"lag"`
	SilentMs  int64      `json:"silentMs"`
	Version   string     `json:"version"`
	Level     uint64     `json:"level"`
	Replaces  string     `json:"replaces"`
	ClockMs   *int64     `json:"clockMs"` // ahead of the leader's; nil: not known
	Problem   string     `json:"problem"`
	JoinedAt  time.Time  `json:"joinedAt"`
	RemovedAt *time.Time `json:"removedAt"`
}

// Cluster reads the schedulers of the cluster; for operators.
func (c *Client) Cluster(ctx context.Context) (Answer[Cluster], error) {
	return call[Cluster](ctx, c, http.MethodGet, "/admin/v1/cluster", nil, nil)
}

// CreateMemberToken is the body of a scheduler's join token.
type CreateMemberToken struct {
	NonVoter   bool   `json:"nonVoter,omitempty"`
	Replaces   string `json:"replaces,omitempty"`
	TTLSeconds int64  `json:"ttlSeconds,omitempty"`
}

// CreateMemberToken makes a token with which one scheduler may join, once; for operators.
func (c *Client) CreateMemberToken(ctx context.Context, body CreateMemberToken) (Answer[JoinToken], error) {
	return call[JoinToken](ctx, c, http.MethodPost, "/admin/v1/cluster/tokens", nil, body)
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
	body := struct {
		MemberID string `json:"memberId,omitempty"`
	}{id}
	_, err := call[struct{}](ctx, c, http.MethodPost, "/admin/v1/cluster/transfer", nil, body)
	return err
}

// Backup tells of a copy of the state that is kept.
type Backup struct {
	SavedAt time.Time `json:"savedAt"`
}

// NoteBackup tells the cluster of when a copy of the state is that is whole where it is kept, and answers of when the
// newest is; for operators.
func (c *Client) NoteBackup(ctx context.Context, savedAt time.Time) (Answer[Backup], error) {
	return call[Backup](ctx, c, http.MethodPost, "/admin/v1/backups", nil, Backup{SavedAt: savedAt})
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
