package session

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"gantry/agent/machine"
	"gantry/internal/agentrpc"
	"gantry/internal/pki"
	"gantry/internal/sleep"
)

const (
	joinTimeout  = 30 * time.Second
	renewTimeout = 30 * time.Second
	joinAttempt  = 12 * time.Second // above the time that a scheduler takes to commit it at most
)

// JoinConfig says how a host joins a cluster.
type JoinConfig struct {
	Dir        string   // data folder
	Schedulers []string // link addresses, of which any answers
	Name       string   // for people
	Token      string
	MachineID  string // identity of the system, and that of its main board; read from the machine when they are empty
	Hardware   string
	Dial       Dialer
}

// Join is JoinCluster with one scheduler.
func Join(ctx context.Context, dir, addr, name, token string, dial Dialer) (hostID string, err error) {
	return JoinCluster(ctx, JoinConfig{Dir: dir, Schedulers: []string{addr}, Name: name, Token: token, Dial: dial})
}

// JoinCluster trades a one-use token for a host certificate and keeps it in the data folder. A scheduler is
// trusted only if the token names its CA. Schedulers are asked one after the other until one answers; while
// they say that none leads, they are asked again. It fails when the folder holds a certificate already.
func JoinCluster(ctx context.Context, c JoinConfig) (hostID string, err error) {
	token, err := pki.ParseJoinToken(c.Token)
	if err != nil {
		return "", err
	}
	store, err := OpenStore(c.Dir)
	if err != nil {
		return "", err
	}
	if id, err := store.Identity(); err == nil {
		return "", fmt.Errorf("this host has joined already, as %s", id.ID)
	}
	where, err := OpenDirectory(c.Dir, c.Schedulers)
	if err != nil {
		return "", err
	}
	if c.MachineID == "" {
		if c.MachineID, err = machine.ID(c.Dir); err != nil {
			return "", err
		}
	}
	csr, err := store.Request()
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, joinTimeout)
	defer cancel()
	answer, trust, err := askToJoin(ctx, where, len(c.Schedulers), token, c.Dial, &agentrpc.JoinRequest{
		Token: c.Token, Csr: csr, MachineId: c.MachineID, Name: c.Name, Hardware: cmp.Or(c.Hardware, machine.Hardware()),
	})
	if err != nil {
		return "", fmt.Errorf("join the cluster: %w", err)
	}
	leaf, err := x509.ParseCertificate(answer.GetCertificate())
	if err != nil {
		return "", fmt.Errorf("read the certificate: %w", err)
	}
	trusted, err := trust.Trusted(answer.GetCas())
	if err != nil {
		return "", err
	}
	members := answer.GetSchedulers()
	if len(members) == 0 {
		members = c.Schedulers
	}
	if err := where.learn(members); err != nil {
		return "", err
	}
	if err := store.Install(leaf, trusted...); err != nil {
		return "", err
	}
	return answer.GetHostId(), nil
}

// askToJoin asks schedulers until one has an answer. It gives up when none of them can be reached, and when
// ctx ends: between two leaders there is none for a moment.
func askToJoin(ctx context.Context, where *Directory, named int, token pki.JoinToken, dial Dialer, in *agentrpc.JoinRequest) (*agentrpc.JoinResponse, *agentrpc.JoinTLS, error) {
	delay, followed := reconnectLeast, false
	var faults []error
	for {
		addr := where.next()
		answer, trust, err := joinAt(ctx, addr, token, dial, in)
		if err == nil {
			return answer, trust, nil
		}
		err = fmt.Errorf("%s: %w", addr, err)
		if code := status.Code(errors.Unwrap(err)); code != codes.Unavailable && code != codes.DeadlineExceeded || ctx.Err() != nil {
			return nil, nil, errors.Join(append(faults, err)...)
		}
		leader := leaderOf(err)
		if followed = leader != "" && !followed; followed {
			where.try(leader)
			continue
		}
		if trust != nil && trust.CA() != nil { // it answered, and may lead or know who does in a moment
			faults = nil
		} else if faults = append(faults, err); len(faults) >= named {
			return nil, nil, errors.Join(faults...)
		}
		if sleep.For(ctx, delay/2+rand.N(delay/2)) != nil {
			return nil, nil, err
		}
		delay = min(2*delay, reconnectMost)
	}
}

// joinAt asks one scheduler. What is returned as trusted knows a CA once the scheduler has proved that it belongs to the cluster, also
// with an error.
func joinAt(ctx context.Context, addr string, token pki.JoinToken, dial Dialer, in *agentrpc.JoinRequest) (*agentrpc.JoinResponse, *agentrpc.JoinTLS, error) {
	ctx, cancel := context.WithTimeout(ctx, joinAttempt)
	defer cancel()
	trust := agentrpc.JoinClientTLS(token)
	conn, err := newClient(addr, dial, credentials.NewTLS(trust.Config()))
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = conn.Close() }()
	var trailer metadata.MD
	answer, err := agentrpc.NewJoinClient(conn).Join(ctx, in, grpc.Trailer(&trailer))
	if err != nil {
		return nil, trust, withLeader(err, trailer)
	}
	return answer, trust, nil
}

// OpenStore opens the certificate store of a data folder.
func OpenStore(dir string) (*pki.Store, error) {
	path := filepath.Join(dir, "pki")
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("make the certificate folder: %w", err)
	}
	return pki.OpenStore(path)
}

// renew trades the present certificate for a fresh one.
func renew(ctx context.Context, conn *grpc.ClientConn, store *pki.Store) error {
	ctx, cancel := context.WithTimeout(ctx, renewTimeout)
	defer cancel()
	csr, err := store.Request()
	if err != nil {
		return err
	}
	answer, err := agentrpc.NewJoinClient(conn).Renew(ctx, &agentrpc.RenewRequest{Csr: csr})
	if err != nil {
		return err
	}
	leaf, err := x509.ParseCertificate(answer.GetCertificate())
	if err != nil {
		return fmt.Errorf("read the certificate: %w", err)
	}
	var cas []*x509.Certificate // a scheduler of before names none
	if ders := answer.GetCas(); len(ders) > 0 {
		if cas, err = pki.ParseTrustDER(ders); err != nil {
			return err
		}
	}
	return store.Renew(leaf, cas...)
}
