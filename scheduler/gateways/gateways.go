// Package gateways answers gateways, at every scheduler: it tells them where requests lead and what keys may do, and takes at the leader
// what they say of themselves. Nothing else is theirs to ask. It stores nothing.
package gateways

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/scheduler/membership"
	"gantry/scheduler/state"
)

const (
	// heardWithin is for how long a gateway counts as connected after it said something.
	heardWithin = 5 * time.Second
	forgotten   = time.Hour // what was said is kept for so long
	maxKey      = 512       // bytes
)

// Node is the replica of this member; see replica.Node.
type Node interface {
	IsLeader() bool
	LeaderChanges() <-chan struct{}
}

// Config is what a Server is made from.
type Config struct {
	Store  *state.Store
	Node   Node
	Leader func() string // link address of the leader, this member included; empty: none is known
	// May refuses a key with which no requests may be sent to an endpoint; Opens reports whether one opens a port of a pod.
	May   func(ctx context.Context, key fleet.Secret, id fleet.EndpointID) error
	Opens func(ctx context.Context, pod fleet.PodID, port int, credential fleet.Secret) bool
	// Who returns whose key it is, with the quotas that hold for its account.
	Who func(ctx context.Context, key fleet.Secret) (fleet.Principal, error)
	// NoteWrite records that the holder of a key writes files into a pod, or says why not.
	NoteWrite func(ctx context.Context, key fleet.Secret, pod fleet.PodID, address string) error
	// Requests takes how many requests there are at a gateway.
	Requests func(from fleet.GatewayID, in *agentrpc.RequestsReport) *agentrpc.RequestsWord
	Log      *slog.Logger
}

// Server implements agentrpc.RoutesServer. It is safe for concurrent use.
type Server struct {
	agentrpc.UnimplementedRoutesServer
	Config

	mu      sync.Mutex // guards the fields below
	heard   map[fleet.GatewayID]fleet.GatewayView
	watches map[fleet.GatewayID]*context.CancelCauseFunc
}

// New returns a Server.
func New(c Config) *Server {
	return &Server{Config: c, heard: map[fleet.GatewayID]fleet.GatewayView{}, watches: map[fleet.GatewayID]*context.CancelCauseFunc{}}
}

// Views returns gateways with what they said last to this member.
func (s *Server) Views(all []fleet.Gateway) []fleet.GatewayView {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]fleet.GatewayView, 0, len(all))
	now := time.Now()
	for _, g := range all {
		view := s.heard[g.ID]
		view.Gateway, view.Connected = g, now.Sub(view.Heard) < heardWithin
		out = append(out, view)
	}
	return out
}

// CheckKey implements agentrpc.RoutesServer.
func (s *Server) CheckKey(ctx context.Context, in *agentrpc.KeyQuestion) (*agentrpc.KeyAnswer, error) {
	if _, err := membership.GatewayOf(ctx, s.Store); err != nil {
		return nil, err
	}
	if len(in.GetKey()) > maxKey {
		return &agentrpc.KeyAnswer{Code: string(fleet.CodeUnauthorized)}, nil
	}
	if in.GetWho() {
		who, err := s.Who(ctx, fleet.Secret(in.GetKey()))
		return refusalOr(&agentrpc.KeyAnswer{Holder: holder(who)}, err)
	}
	if in.GetEndpointId() == "" {
		out := &agentrpc.KeyAnswer{}
		if !s.Opens(ctx, fleet.PodID(in.GetPodId()), int(in.GetPort()), fleet.Secret(in.GetKey())) {
			out.Code = string(fleet.CodeForbidden)
		}
		return out, nil
	}
	return refusalOr(&agentrpc.KeyAnswer{}, s.May(ctx, fleet.Secret(in.GetKey()), fleet.EndpointID(in.GetEndpointId())))
}

// NoteWrite implements agentrpc.RoutesServer.
func (s *Server) NoteWrite(ctx context.Context, in *agentrpc.FilesWrite) (*agentrpc.KeyAnswer, error) {
	if _, err := membership.GatewayOf(ctx, s.Store); err != nil {
		return nil, err
	}
	if !s.Node.IsLeader() {
		return nil, agentrpc.NotLeader(ctx, s.Leader())
	}
	if len(in.GetKey()) > maxKey || !fleet.ValidID(in.GetPodId()) {
		return &agentrpc.KeyAnswer{Code: string(fleet.CodeUnauthorized)}, nil
	}
	from, _ := netip.ParseAddr(in.GetAddress())
	address := ""
	if from.IsValid() {
		address = from.WithZone("").String()
	}
	return refusalOr(&agentrpc.KeyAnswer{}, s.Config.NoteWrite(ctx, fleet.Secret(in.GetKey()), fleet.PodID(in.GetPodId()), address))
}

// holder is what a gateway is told of who holds a key: what it needs to serve the inside of pods. A pod's own key opens nothing there.
func holder(who fleet.Principal) *agentrpc.KeyHolder {
	out := &agentrpc.KeyHolder{AccountId: string(who.Account)}
	if who.Pod == "" {
		out.Pods = string(who.Can[fleet.GroupPods])
	}
	if q := who.Quotas; q != nil {
		out.Minute, out.Hour, out.Day = int64(q.Minute), int64(q.Hour), int64(q.Day)
	}
	return out
}

// refusalOr is the answer, unless err is why there is none.
func refusalOr(answer *agentrpc.KeyAnswer, err error) (*agentrpc.KeyAnswer, error) {
	var why *fleet.Error
	switch {
	case err == nil:
		return answer, nil
	case !errors.As(err, &why) || why.Code == fleet.CodeUnavailable:
		return nil, status.Error(codes.Unavailable, "the key cannot be checked at the moment")
	}
	text := why.Msg
	if len(why.Details) > 0 {
		text = strings.Join(why.Details, "; ")
	}
	return &agentrpc.KeyAnswer{Code: string(why.Code), Text: text}, nil
}

// Report implements agentrpc.RoutesServer.
func (s *Server) Report(ctx context.Context, in *agentrpc.GatewayReport) (*agentrpc.RequestsWord, error) {
	id, err := membership.GatewayOf(ctx, s.Store)
	if err != nil {
		return nil, err
	}
	if !s.Node.IsLeader() {
		return nil, agentrpc.NotLeader(ctx, s.Leader())
	}
	now := time.Now()
	s.mu.Lock()
	maps.DeleteFunc(s.heard, func(_ fleet.GatewayID, v fleet.GatewayView) bool { return now.Sub(v.Heard) > forgotten })
	s.heard[id] = fleet.GatewayView{
		Heard: now, Open: int(in.GetOpen()), Hosts: int(in.GetHosts()), Version: agentrpc.Shortened(in.GetVersion(), 256),
		Certificate: agentrpc.DecodeCertificate(in.GetCertificate()),
	}
	s.mu.Unlock()
	return s.Requests(id, in.GetRequests()), nil
}
