package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"

	"gantry/internal/pki"
)

const (
	settingsFolder = "/etc/gantry"
	journalMost    = 8 << 20 // bytes of one daemon's journal
)

// daemonsOnMachine are the daemons that packages install: their settings file, and where they serve metrics by default.
func daemonsOnMachine() []struct{ name, metrics string } {
	return []struct{ name, metrics string }{{"scheduler", "127.0.0.1:9413"}, {"agent", "127.0.0.1:9412"}, {"s3", "127.0.0.1:9414"}}
}

// scraped is where a daemon serves metrics, and what it asks of who reads them.
type scraped struct {
	url       string
	cert      string // file with the certificate that it has to show; empty: that a well-known CA vouches for, or no TLS
	tokenFile string
	clientCA  bool // it asks for a certificate
}

// metricsOf returns where the daemons that have settings in a folder serve metrics. Settings that cannot be read are
// taken for the default ones.
func metricsOf(folder string) []scraped {
	var out []scraped
	for _, d := range daemonsOnMachine() {
		text, err := os.ReadFile(filepath.Join(folder, d.name+".toml"))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		settings := struct {
			Metrics   *string `toml:"metrics"`
			TLSCert   string  `toml:"metrics-tls-cert"`
			ClientCA  string  `toml:"metrics-client-ca"`
			TokenFile string  `toml:"metrics-token-file"`
		}{Metrics: &d.metrics}
		if toml.Unmarshal(text, &settings) == nil && *settings.Metrics == "" {
			continue
		}
		one := scraped{url: "http://" + *settings.Metrics + "/metrics"}
		if settings.TLSCert != "" {
			one = scraped{
				url: "https://" + hereOf(*settings.Metrics) + "/metrics", cert: settings.TLSCert, tokenFile: settings.TokenFile,
				clientCA: settings.ClientCA != "",
			}
		}
		out = append(out, one)
	}
	return out
}

// hereOf returns an address of this machine at which one that may be any of it is reached.
func hereOf(addr string) string {
	host, port, err := net.SplitHostPort(addr)
	if ip := net.ParseIP(host); err != nil || host != "" && (ip == nil || !ip.IsUnspecified()) {
		return addr
	}
	if strings.Contains(host, ":") {
		return net.JoinHostPort("::1", port)
	}
	return net.JoinHostPort("127.0.0.1", port)
}

// fetch reads the metrics. Pair is the certificate that is shown where one is asked for; nil: there is none.
func (s scraped) fetch(ctx context.Context, pair *tls.Certificate) ([]byte, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	switch {
	case pair != nil:
		config.Certificates = []tls.Certificate{*pair}
	case s.clientCA:
		return nil, errors.New("its metrics ask for a certificate: give one with --metrics-client-cert and --metrics-client-key")
	}
	if s.cert != "" {
		leaf, err := leafOf(s.cert)
		if err != nil {
			return nil, err
		}
		config.InsecureSkipVerify = true //nolint:gosec // it has to be this very certificate, whatever name it is for
		config.VerifyConnection = func(c tls.ConnectionState) error {
			if !c.PeerCertificates[0].Equal(leaf) {
				return fmt.Errorf("it does not show the certificate of %s", s.cert)
			}
			return nil
		}
	}
	header := http.Header{}
	if s.tokenFile != "" {
		token, err := pki.ReadSecretFile(s.tokenFile)
		if err != nil {
			return nil, err
		}
		header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	}
	return fetch(ctx, s.url, config, header)
}

// leafOf reads the first certificate of a file.
func leafOf(path string) (*x509.Certificate, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, fmt.Errorf("%s holds no certificate", path)
	}
	return x509.ParseCertificate(block.Bytes)
}

// unitsOf names the units of the daemons that have settings in a folder.
func unitsOf(folder string) []string {
	var out []string
	for _, d := range daemonsOnMachine() {
		if _, err := os.Stat(filepath.Join(folder, d.name+".toml")); err == nil {
			out = append(out, "gantry-"+d.name)
		}
	}
	return out
}

// journal returns what a unit wrote within that time, 50,000 lines and 8 MiB at most.
func journal(ctx context.Context, unit string, ago time.Duration) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, bundleCall)
	defer cancel()
	cmd := exec.CommandContext(ctx, "journalctl", "--unit", unit, "--since", fmt.Sprintf("-%ds", int(ago.Seconds())),
		"--lines", "50000", "--output", "short-iso", "--no-pager", "--quiet")
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", err
	}
	if err := cmd.Start(); err != nil {
		return "", err
	}
	text, readErr := io.ReadAll(io.LimitReader(out, journalMost))
	_, _ = io.Copy(io.Discard, out)
	if err := cmd.Wait(); err != nil {
		return "", fmt.Errorf("journalctl: %w", err)
	}
	return string(text), readErr
}
