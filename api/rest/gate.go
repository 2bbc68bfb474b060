package rest

import (
	"net/http"
	"net/netip"
	"sync/atomic"

	"gantry/api/auth"
	"gantry/api/problem"
	"gantry/fleet"
	"gantry/internal/share"
)

// vitalPerAccount is how many requests of one account are let through at a time where no others are.
const vitalPerAccount = 64

const (
	textOwnFull = "too many connections or requests at a time from this address"
	textAllFull = "too many connections or requests at a time"
)

// GateConfig is what a Gate needs.
type GateConfig struct {
	Requests   int                   // under way at a time; DefaultConnections
	PerAddress int                   // of them of one client address; DefaultPerAddress
	Trusted    func(netip.Addr) bool // addresses that speak for many clients; nil: none
	// Pod tells requests to pods' pages, which are refused in plain text and never vital; nil: there are none.
	Pod func(*http.Request) bool
	// Vital tells whether a request is to be answered when its address has its share (share.Own), or all is taken (share.All), and
	// of which account it is; "": of none. nil: no request is.
	Vital func(*http.Request, share.Why) (fleet.AccountID, bool)
}

// Gate bounds the requests that are under way, of one address and in all, and lets those through which must get through. It is safe
// for concurrent use.
type Gate struct {
	cfg   GateConfig
	held  *share.Held[netip.Addr]
	vital *share.Held[fleet.AccountID]

	refused [3]atomic.Uint64 // by share.Why
	passed  atomic.Uint64
}

// NewGate returns a Gate through which nothing has come.
func NewGate(cfg GateConfig) *Gate {
	if cfg.Requests == 0 {
		cfg.Requests = DefaultConnections
	}
	if cfg.PerAddress == 0 {
		cfg.PerAddress = DefaultPerAddress
	}
	return &Gate{
		cfg: cfg, held: share.NewHeld(cfg.Requests, cfg.PerAddress, cfg.Trusted),
		vital: share.NewHeld[fleet.AccountID](cfg.Requests, vitalPerAccount, func(a fleet.AccountID) bool { return a == "" }),
	}
}

// Wrap returns the handler before next.
func (g *Gate) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		client, why := share.Of(r.RemoteAddr), share.Free
		conn, _ := r.Context().Value(connKey{}).(*share.Conn)
		if conn != nil { // on a spare seat
			why = conn.Spare()
			w.Header().Set("Connection", "close")
		} else if why = g.held.Take(client); why == share.Free {
			defer g.held.Give(client)
			next.ServeHTTP(w, r)
			return
		}
		account, ok := g.mustPass(r, why)
		if !ok || g.vital.Take(account) != share.Free {
			g.refused[why].Add(1)
			g.refuse(w, r, why)
			return
		}
		defer g.vital.Give(account)
		g.passed.Add(1)
		if conn != nil {
			conn.Admit()
		}
		next.ServeHTTP(w, r)
	})
}

func (g *Gate) mustPass(r *http.Request, why share.Why) (fleet.AccountID, bool) {
	if g.cfg.Vital == nil || g.cfg.Pod != nil && g.cfg.Pod(r) {
		return "", false
	}
	return g.cfg.Vital(r, why)
}

func (g *Gate) refuse(w http.ResponseWriter, r *http.Request, why share.Why) {
	status, err := http.StatusTooManyRequests, &fleet.Error{Code: fleet.CodeLimited, Msg: textOwnFull}
	if why == share.All {
		status, err = http.StatusServiceUnavailable, &fleet.Error{Code: fleet.CodeUnavailable, Msg: textAllFull}
	}
	w.Header().Set(retryHeader, "1")
	w.Header().Set(nothingHeader, "1")
	if g.cfg.Pod != nil && g.cfg.Pod(r) {
		http.Error(w, err.Msg, status)
		return
	}
	id := problem.ChooseRequestID(r)
	w.Header().Set("X-Request-Id", id)
	problem.Write(w, problem.For(r, problem.From(err, id)))
}

// GateCounts are those of a Gate since it was made.
type GateCounts struct {
	Open       int    // requests under way
	Passed     uint64 // requests that got through because they are vital
	RefusedOwn uint64 // requests refused because their address has its share
	RefusedAll uint64 // requests refused because all was taken
}

// Counts returns what was counted.
func (g *Gate) Counts() GateCounts {
	return GateCounts{Open: g.held.Sum() + g.vital.Sum(), Passed: g.passed.Load(), RefusedOwn: g.refused[share.Own].Load(), RefusedAll: g.refused[share.All].Load()}
}

// Vital tells whether a request must be answered when its address has its share of requests, or all are taken: questions about the
// scheduler's health and, with a good key, those of operators; where it is the address alone that has its share, those with any
// good key. It asks nobody, so a key that was made a moment ago on another scheduler may not be known.
func (a *API) Vital(r *http.Request, why share.Why) (fleet.AccountID, bool) {
	if IsHealth(r) {
		return "", true
	}
	who, ok := a.known(r, auth.Bearer)
	if !ok {
		return "", false
	}
	return who.Account, why == share.Own || who.May(fleet.GroupAdmin, fleet.AccessRead)
}

// IsHealth tells requests that ask how this daemon is.
func IsHealth(r *http.Request) bool {
	return (r.URL.Path == "/healthz" || r.URL.Path == "/livez") && (r.Method == http.MethodGet || r.Method == http.MethodHead)
}
