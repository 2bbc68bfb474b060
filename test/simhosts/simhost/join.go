package simhost

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"gantry/api/admin"
	"gantry/client"
	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/internal/pki"
	"gantry/internal/sleep"
)

const (
	joinTimeout = 30 * time.Second
	joinTries   = 10
	bufferSize  = 4 << 10 // of a connection, each way: a host says little
	tokenLife   = 3600    // seconds
)

// Operator gives join tokens of a data center through the operators' API.
func Operator(api *client.Client, center string) func(ctx context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		a, err := api.CreateJoinToken(ctx, admin.CreateTokenRequest{DataCenterID: center, TTLSeconds: tokenLife})
		return a.Value.Token.Reveal(), err
	}
}

// join trades a token for a certificate, at the scheduler that leads.
func (h *Host) join(ctx context.Context) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return err
	}
	text, err := h.fleet.Token(ctx)
	if err != nil {
		return fmt.Errorf("get a join token: %w", err)
	}
	answer, ca, err := h.trade(ctx, text, csr)
	if err != nil {
		return err
	}
	leaf, err := x509.ParseCertificate(answer.GetCertificate())
	if err != nil {
		return err
	}
	roots := h.fleet.roots.Load()
	if roots == nil {
		roots = x509.NewCertPool()
		roots.AddCert(ca)
		h.fleet.roots.Store(roots) // of two that are made at once, either will do
	}
	cert := tls.Certificate{Certificate: [][]byte{leaf.Raw, ca.Raw}, PrivateKey: key, Leaf: leaf}
	h.fleet.joined.Add(1)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.id = fleet.HostID(answer.GetHostId())
	h.tls = &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{agentrpc.ALPNGRPC}, RootCAs: roots, ServerName: pki.ServerName,
		Certificates: []tls.Certificate{cert},
		VerifyConnection: func(state tls.ConnectionState) error {
			return pki.VerifyScheduler(state.PeerCertificates[0], ca, time.Now())
		},
	}
	return nil
}

// trade asks one scheduler after the other until one that leads answers.
func (h *Host) trade(ctx context.Context, text string, csr []byte) (*agentrpc.JoinResponse, *x509.Certificate, error) {
	token, err := pki.ParseJoinToken(text)
	if err != nil {
		return nil, nil, err
	}
	req := &agentrpc.JoinRequest{Token: text, Csr: csr, MachineId: h.machine, Name: h.name, Hardware: h.machine}
	addr, wait := h.fleet.Schedulers[0], least
	for n := 1; ; n++ {
		answer, ca, hint, err := h.tradeAt(ctx, addr, token, req)
		if err == nil || status.Code(err) != codes.Unavailable || n == joinTries {
			return answer, ca, err
		}
		if addr = hint; addr == "" {
			addr = h.fleet.Schedulers[n%len(h.fleet.Schedulers)]
			if sleep.For(ctx, wait) != nil {
				return nil, nil, err
			}
			wait = min(2*wait, most)
		}
	}
}

func (h *Host) tradeAt(
	ctx context.Context, addr string, token pki.JoinToken, req *agentrpc.JoinRequest,
) (answer *agentrpc.JoinResponse, ca *x509.Certificate, hint string, err error) {
	trust := agentrpc.JoinClientTLS(token)
	conn, err := h.dial(addr, trust.Config())
	if err != nil {
		return nil, nil, "", err
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(ctx, joinTimeout)
	defer cancel()
	var trailer metadata.MD
	answer, err = agentrpc.NewJoinClient(conn).Join(ctx, req, grpc.Trailer(&trailer))
	if err != nil {
		return nil, nil, agentrpc.LeaderHint(trailer), err
	}
	if trust.CA() == nil {
		return nil, nil, "", errors.New("the scheduler's CA was not verified")
	}
	return answer, trust.CA(), "", nil
}

// dial prepares a connection of the host's own, with as little memory as will do.
func (h *Host) dial(addr string, conf *tls.Config) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+addr,
		grpc.WithContextDialer(h.fleet.Dial), grpc.WithTransportCredentials(credentials.NewTLS(conf)),
		grpc.WithReadBufferSize(bufferSize), grpc.WithWriteBufferSize(bufferSize),
		grpc.WithInitialWindowSize(agentrpc.StreamWindow), grpc.WithInitialConnWindowSize(agentrpc.ConnWindow),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)), grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(),
	)
}
