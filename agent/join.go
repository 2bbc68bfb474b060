package agent

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"gantry/internal/link"
	"gantry/internal/pki"
)

const joinTimeout = 30 * time.Second

// Join trades a one-use token for a host certificate and keeps it in dir. The scheduler is trusted
// only if the token names its CA. It fails when dir holds a certificate already.
func Join(ctx context.Context, dir, addr, name, tokenText string, dial Dialer) (hostID string, err error) {
	token, err := pki.ParseJoinToken(tokenText)
	if err != nil {
		return "", err
	}
	store, err := openStore(dir)
	if err != nil {
		return "", err
	}
	if id, err := store.Identity(); err == nil {
		return "", fmt.Errorf("this host has joined already, as %s", id.ID)
	}
	machine, err := machineID(dir)
	if err != nil {
		return "", err
	}
	csr, err := store.Request()
	if err != nil {
		return "", err
	}
	trust := link.JoinClientTLS(token)
	conn, err := grpc.NewClient("passthrough:///"+addr,
		grpc.WithContextDialer(dial), grpc.WithTransportCredentials(credentials.NewTLS(trust.Config())))
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(ctx, joinTimeout)
	defer cancel()
	answer, err := link.NewJoinClient(conn).Join(ctx, &link.JoinRequest{
		Token: tokenText, Csr: csr, MachineId: machine, Name: name,
	})
	if err != nil {
		return "", fmt.Errorf("join the cluster: %w", err)
	}
	leaf, err := x509.ParseCertificate(answer.GetCertificate())
	if err != nil {
		return "", fmt.Errorf("read the certificate: %w", err)
	}
	if trust.CA() == nil {
		return "", errors.New("the scheduler's CA was not verified")
	}
	if err := store.Install(leaf, trust.CA()); err != nil {
		return "", err
	}
	return answer.GetHostId(), nil
}

func openStore(dir string) (*pki.Store, error) {
	path := filepath.Join(dir, "pki")
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("make the certificate folder: %w", err)
	}
	return pki.OpenStore(path)
}

// renew trades the present certificate for a fresh one.
func renew(ctx context.Context, conn *grpc.ClientConn, store *pki.Store) error {
	ctx, cancel := context.WithTimeout(ctx, joinTimeout)
	defer cancel()
	csr, err := store.Request()
	if err != nil {
		return err
	}
	answer, err := link.NewJoinClient(conn).Renew(ctx, &link.RenewRequest{Csr: csr})
	if err != nil {
		return err
	}
	leaf, err := x509.ParseCertificate(answer.GetCertificate())
	if err != nil {
		return fmt.Errorf("read the certificate: %w", err)
	}
	ca, err := store.CA()
	if err != nil {
		return err
	}
	return store.Install(leaf, ca)
}
