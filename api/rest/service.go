package rest

import (
	"context"
	"time"

	"gantry/fleet"
)

// Service is what the REST face needs of the control plane. Every call takes the principal: what is
// not the caller's is not there. Errors carry a fleet.Code.
type Service interface {
	// Authenticate returns who holds the key; CodeUnauthorized when nobody does.
	Authenticate(ctx context.Context, key fleet.Secret) (fleet.Principal, error)

	CreatePod(ctx context.Context, who fleet.Principal, req fleet.PodRequest) (fleet.PodView, error)
	// PlanPod answers as CreatePod would, and creates nothing.
	PlanPod(ctx context.Context, who fleet.Principal, req fleet.PodRequest) (fleet.PodView, error)
	Pods(ctx context.Context, who fleet.Principal) ([]fleet.PodView, error)
	Pod(ctx context.Context, who fleet.Principal, id fleet.PodID) (fleet.PodView, error)
	ActPod(ctx context.Context, who fleet.Principal, id fleet.PodID, action fleet.Trigger) (fleet.PodView, error)
	PodLogs(ctx context.Context, who fleet.Principal, id fleet.PodID, q fleet.LogQuery, sink fleet.LogSink) error

	Catalog(ctx context.Context, q fleet.CatalogQuery) (fleet.CatalogView, error)

	CreateKey(ctx context.Context, who fleet.Principal, name, preset string, expires time.Time) (fleet.Key, fleet.Secret, error)
	Keys(ctx context.Context, who fleet.Principal) ([]fleet.Key, error)
	DeleteKey(ctx context.Context, who fleet.Principal, id fleet.KeyID) error

	// The rest is for operators.

	Hosts(ctx context.Context) ([]fleet.HostView, error)
	Host(ctx context.Context, id fleet.HostID) (fleet.HostView, error)
	// CreateJoinToken returns the text of a one-use token for a host of the data center, which is
	// made when it is new.
	CreateJoinToken(ctx context.Context, dc fleet.DataCenterID, cloud fleet.Cloud, ttl time.Duration) (fleet.Secret, time.Time, error)
	CreateAccount(ctx context.Context, name string) (fleet.Account, error)
	Accounts(ctx context.Context) ([]fleet.Account, error)
	// CreateAccountKey makes the first key of an account.
	CreateAccountKey(ctx context.Context, account fleet.AccountID, name, preset string) (fleet.Key, fleet.Secret, error)
}

// Health is one known condition of the daemon.
type Health struct {
	Name string `json:"name"`
	OK   bool   `json:"ok"`
	Text string `json:"text,omitempty"`
}

// HealthSource tells the daemon's conditions; it answers at once.
type HealthSource func() []Health
