package membership

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/internal/pki"
	"gantry/internal/sleep"
)

// Joined is what a scheduler has after it joined.
type Joined struct {
	Member    fleet.MemberID
	ClusterID string
	Leaf      *x509.Certificate
	Trusted   []*x509.Certificate // CAs, the one that signs first
	SealKey   []byte              // a secret
}

func joined(out *agentrpc.JoinMemberResponse, trusted func(cas [][]byte) ([]*x509.Certificate, error)) (Joined, error) {
	leaf, err := x509.ParseCertificate(out.GetCertificate())
	if err != nil {
		return Joined{}, fmt.Errorf("the certificate cannot be read: %w", err)
	}
	cas := out.GetCas()
	if len(cas) == 0 {
		cas = [][]byte{out.GetCa()}
	}
	trust, err := trusted(cas)
	if err != nil {
		return Joined{}, err
	}
	if !fleet.ValidID(out.GetMemberId()) {
		return Joined{}, errors.New("the cluster gave no valid id")
	}
	return Joined{
		Member: fleet.MemberID(out.GetMemberId()), ClusterID: out.GetClusterId(), Leaf: leaf, Trusted: trust, SealKey: out.GetSealKey(),
	}, nil
}

// maxHints bounds how many schedulers are tried because others named them.
const maxHints = 8

// Join trades a join token at whoever leads. schedulers are link addresses of any members.
func Join(ctx context.Context, token pki.JoinToken, schedulers []string, in *agentrpc.JoinMemberRequest) (Joined, error) {
	return trade(ctx, token, schedulers, in, agentrpc.PeerClient.JoinMember)
}

// JoinGateway is Join for a gateway, who gets no SealKey; Member is its id.
func JoinGateway(ctx context.Context, token pki.JoinToken, schedulers []string, in *agentrpc.JoinMemberRequest) (Joined, error) {
	return trade(ctx, token, schedulers, in, agentrpc.PeerClient.JoinGateway)
}

type joinFunc func(agentrpc.PeerClient, context.Context, *agentrpc.JoinMemberRequest, ...grpc.CallOption) (*agentrpc.JoinMemberResponse, error)

func trade(ctx context.Context, token pki.JoinToken, schedulers []string, in *agentrpc.JoinMemberRequest, join joinFunc) (Joined, error) {
	var last *agentrpc.JoinTLS // of the scheduler that is being asked
	dial := func(address string, more ...grpc.DialOption) (*grpc.ClientConn, error) {
		last = agentrpc.JoinClientTLS(token)
		return connection(address, credentials.NewTLS(last.Config()), more...)
	}
	in.Token = token.Text()
	out, err := atLeader(ctx, schedulers, dial, func(ctx context.Context, c agentrpc.PeerClient, opt grpc.CallOption) (*agentrpc.JoinMemberResponse, error) {
		return join(c, ctx, in, opt)
	})
	if err != nil {
		return Joined{}, err
	}
	return joined(out, last.Trusted)
}

// RenewGateway has whoever leads, or the scheduler at an address if that knows no leader, sign a new certificate, and installs it.
func RenewGateway(ctx context.Context, certs *pki.Store, address string) error {
	return renewAt(ctx, certs, address, agentrpc.PeerClient.RenewGateway, func(ctx context.Context, address string, fn func(context.Context, agentrpc.PeerClient) error) error {
		conn, err := dialPeer(certs, address)
		if err != nil {
			return err
		}
		return errors.Join(fn(ctx, agentrpc.NewPeerClient(conn)), conn.Close())
	})
}

// Rejoin gives a member whose data is lost a new identity. It needs its certificate.
func Rejoin(ctx context.Context, certs *pki.Store, schedulers []string, in *agentrpc.RejoinRequest) (Joined, error) {
	dial := func(address string, more ...grpc.DialOption) (*grpc.ClientConn, error) {
		return dialPeer(certs, address, more...)
	}
	out, err := atLeader(ctx, schedulers, dial, func(ctx context.Context, c agentrpc.PeerClient, opt grpc.CallOption) (*agentrpc.JoinMemberResponse, error) {
		return c.Rejoin(ctx, in, opt)
	})
	if err != nil {
		return Joined{}, err
	}
	return joined(out, pki.ParseTrustDER)
}

type (
	dialFunc func(address string, more ...grpc.DialOption) (*grpc.ClientConn, error)
	callFunc func(context.Context, agentrpc.PeerClient, grpc.CallOption) (*agentrpc.JoinMemberResponse, error)
)

// atLeader makes a call at one scheduler after another for as long as nothing came of it: none was reached, or it
// does not lead. It goes round until ctx ends: a leader may be about to be elected. It never calls again after a
// call that may have been carried out.
func atLeader(ctx context.Context, schedulers []string, dial dialFunc, call callFunc) (*agentrpc.JoinMemberResponse, error) {
	var last error
	for {
		todo := append([]string(nil), schedulers...)
		for hints := 0; len(todo) > 0; todo = todo[1:] {
			a := callOne(ctx, todo[0], dial, call)
			if a.err == nil || !a.nothing {
				return a.out, plain(a.err)
			}
			last = fmt.Errorf("%s: %w", todo[0], plain(a.err))
			if a.hint != "" && hints < maxHints {
				hints++
				todo = append([]string{todo[0], a.hint}, todo[1:]...)
			}
		}
		if sleep.For(ctx, 500*time.Millisecond) != nil {
			return nil, errors.Join(errors.New("no scheduler took the request"), last)
		}
	}
}

// errUnsure is the error of a call that may have been carried out.
var errUnsure = errors.New("the outcome is not known, it may have been done: ask the same again, or see gantry raft members")

// plain takes gRPC's wrapping off an error, and says so when the outcome is not known.
func plain(err error) error {
	s, ok := status.FromError(err)
	if !ok || err == nil {
		return err
	}
	switch s.Code() {
	case codes.Aborted:
		return errUnsure
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Unknown:
		return fmt.Errorf("%w: %s", errUnsure, s.Message())
	}
	return errors.New(s.Message())
}

// answer is what came of a call.
type answer struct {
	out     *agentrpc.JoinMemberResponse
	hint    string // who leads; empty: not known
	nothing bool   // the call failed, and nothing was done
	err     error
}

func callOne(ctx context.Context, address string, dial dialFunc, call callFunc) (a answer) {
	var left sent
	conn, err := dial(address, grpc.WithStatsHandler(&left))
	if err != nil {
		return answer{err: err, nothing: true}
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(ctx, changeTimeout+callTimeout)
	defer cancel()
	var trailer metadata.MD
	a.out, a.err = call(ctx, agentrpc.NewPeerClient(conn), grpc.Trailer(&trailer))
	a.hint = agentrpc.LeaderHint(trailer)
	a.nothing = a.err != nil && (!left.Load() || status.Code(a.err) == codes.Unavailable && agentrpc.NothingWasDone(trailer))
	if a.nothing {
		a.err = errors.New(status.Convert(a.err).Message())
	}
	return a
}

// sent is whether a request has left this machine.
type sent struct{ atomic.Bool }

// HandleRPC implements stats.Handler.
func (s *sent) HandleRPC(_ context.Context, event stats.RPCStats) {
	if _, ok := event.(*stats.OutHeader); ok {
		s.Store(true)
	}
}

// TagRPC implements stats.Handler.
func (s *sent) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// TagConn implements stats.Handler.
func (s *sent) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn implements stats.Handler.
func (s *sent) HandleConn(context.Context, stats.ConnStats) {}
