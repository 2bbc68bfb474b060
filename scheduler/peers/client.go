package peers

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"gantry/fleet"
	"gantry/internal/link"
	"gantry/internal/pki"
)

// Joined is what a scheduler has after it joined.
type Joined struct {
	Member    fleet.MemberID
	ClusterID string
	Leaf, CA  *x509.Certificate
	SealKey   []byte // a secret
}

func joined(out *link.JoinMemberResponse) (Joined, error) {
	leaf, err := x509.ParseCertificate(out.GetCertificate())
	if err != nil {
		return Joined{}, fmt.Errorf("the certificate cannot be read: %w", err)
	}
	ca, err := x509.ParseCertificate(out.GetCa())
	if err != nil {
		return Joined{}, fmt.Errorf("the CA certificate cannot be read: %w", err)
	}
	if !fleet.ValidID(out.GetMemberId()) {
		return Joined{}, errors.New("the cluster gave no valid id")
	}
	return Joined{
		Member: fleet.MemberID(out.GetMemberId()), ClusterID: out.GetClusterId(), Leaf: leaf, CA: ca, SealKey: out.GetSealKey(),
	}, nil
}

// maxHints bounds how many schedulers are tried because others named them.
const maxHints = 8

// Join trades a join token at whoever leads. schedulers are link addresses of any members.
func Join(ctx context.Context, token pki.JoinToken, schedulers []string, in *link.JoinMemberRequest) (Joined, error) {
	trust := link.JoinClientTLS(token)
	dial := func(address string) (*grpc.ClientConn, error) {
		return connection(address, credentials.NewTLS(trust.Config()))
	}
	in.Token = token.Text()
	out, err := atLeader(ctx, schedulers, dial, func(ctx context.Context, c link.PeerClient, opt grpc.CallOption) (*link.JoinMemberResponse, error) {
		return c.JoinMember(ctx, in, opt)
	})
	if err != nil {
		return Joined{}, err
	}
	j, err := joined(out)
	if err == nil && pki.DigestOf(j.CA) != token.CA {
		err = errors.New("the join token is for another cluster")
	}
	return j, err
}

// Rejoin gives a member whose data is lost a new identity. It needs its certificate.
func Rejoin(ctx context.Context, certs *pki.Store, schedulers []string, in *link.RejoinRequest) (Joined, error) {
	dial := func(address string) (*grpc.ClientConn, error) { return Dial(certs, address) }
	out, err := atLeader(ctx, schedulers, dial, func(ctx context.Context, c link.PeerClient, opt grpc.CallOption) (*link.JoinMemberResponse, error) {
		return c.Rejoin(ctx, in, opt)
	})
	if err != nil {
		return Joined{}, err
	}
	return joined(out)
}

// atLeader makes a call at one scheduler after another until one does not say that it does not lead. It goes
// round until ctx ends: a leader may be about to be elected.
func atLeader(
	ctx context.Context, schedulers []string, dial func(string) (*grpc.ClientConn, error),
	call func(context.Context, link.PeerClient, grpc.CallOption) (*link.JoinMemberResponse, error),
) (*link.JoinMemberResponse, error) {
	var last error
	for {
		todo := append([]string(nil), schedulers...)
		for hints := 0; len(todo) > 0; todo = todo[1:] {
			out, hint, err := callOne(ctx, todo[0], dial, call)
			if err == nil || !again(err) {
				return out, plain(err)
			}
			last = fmt.Errorf("%s: %w", todo[0], plain(err))
			if hint != "" && hints < maxHints {
				hints++
				todo = append([]string{todo[0], hint}, todo[1:]...)
			}
		}
		if !pauseUntil(ctx, nil, 500*time.Millisecond) {
			return nil, errors.Join(errors.New("no scheduler took the request"), last)
		}
	}
}

// again reports whether a call that failed did nothing and may be made elsewhere.
func again(err error) bool { return status.Code(err) == codes.Unavailable }

// plain takes gRPC's wrapping off an error.
func plain(err error) error {
	if s, ok := status.FromError(err); ok && err != nil {
		return errors.New(s.Message())
	}
	return err
}

func callOne(
	ctx context.Context, address string, dial func(string) (*grpc.ClientConn, error),
	call func(context.Context, link.PeerClient, grpc.CallOption) (*link.JoinMemberResponse, error),
) (out *link.JoinMemberResponse, hint string, err error) {
	conn, err := dial(address)
	if err != nil {
		return nil, "", err
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(ctx, changeTimeout+callTimeout)
	defer cancel()
	var trailer metadata.MD
	out, err = call(ctx, link.NewPeerClient(conn), grpc.Trailer(&trailer))
	return out, link.LeaderHint(trailer), err
}
