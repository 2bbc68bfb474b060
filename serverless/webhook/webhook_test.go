package webhook

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"gantry/fleet"
	"gantry/internal/outbound"
)

func TestWhichURLsCanBeCalled(t *testing.T) {
	for raw, ok := range map[string]bool{
		"https://example.com/done?x=1": true, "http://203.0.113.5:8080": true,
		"": false, "example.com": false, "ftp://example.com/": false, "http:///x": false, "https://:443/": false,
		"https://user:secret@example.com/": false, "https://example.com/\x7f": false,
		"https://example.com/" + strings.Repeat("x", maxURL): false,
	} {
		err := CheckURL("$.webhook", raw)
		if (err == nil) != ok {
			t.Errorf("%.40s: %v", raw, err)
		}
		if err != nil && (fleet.CodeOf(err) != fleet.CodeInvalid || raw != "" && strings.Contains(err.Error(), raw)) {
			t.Errorf("%.40s: %v", raw, err)
		}
	}
}

func TestACallIsTheRecord(t *testing.T) {
	var got http.Header
	var body []byte
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r.Header.Clone()
		body, _ = io.ReadAll(r.Body)
		w.WriteHeader(http.StatusAccepted)
	}))
	defer srv.Close()
	s := NewSender(nil, true)
	defer s.Close()
	s.now = func() time.Time { return time.Unix(1234, 0) }
	const record = `{"id":"a","status":"COMPLETED"}`
	if err := s.Send(t.Context(), srv.URL+"/done", []byte(record), ""); err != nil {
		t.Fatal(err)
	}
	if string(body) != record || got.Get("Content-Type") != "application/json" || got.Get(SignatureHeader) != "" {
		t.Errorf("%s, %v", body, got)
	}
	if err := s.Send(t.Context(), srv.URL, []byte(record), "s3cret"); err != nil {
		t.Fatal(err)
	}
	mac := hmac.New(sha256.New, []byte("s3cret"))
	_, _ = mac.Write([]byte("1234." + record))
	if want := "t=1234,v1=" + hex.EncodeToString(mac.Sum(nil)); got.Get(SignatureHeader) != want {
		t.Errorf("signature %q, want %q", got.Get(SignatureHeader), want)
	}
}

func TestOnlySuccessIsSuccess(t *testing.T) {
	elsewhere := 0
	target := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere++ }))
	defer target.Close()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var status int
		_, _ = fmt.Sscanf(r.URL.Path, "/%d", &status)
		w.Header().Set("Location", target.URL)
		w.WriteHeader(status)
		_, _ = w.Write([]byte(strings.Repeat("hidden text ", 10_000)))
	}))
	defer srv.Close()
	s := NewSender(nil, true)
	defer s.Close()
	for status, ok := range map[int]bool{200: true, 201: true, 302: false, 307: false, 404: false, 500: false} {
		err := s.Send(t.Context(), fmt.Sprintf("%s/%d?token=abc", srv.URL, status), []byte("{}"), "")
		if (err == nil) != ok || err != nil && !strings.Contains(err.Error(), fmt.Sprint(status)) {
			t.Errorf("%d: %v", status, err)
		}
	}
	if elsewhere != 0 {
		t.Error("a redirect was followed")
	}
	srv.Close()
	if err := s.Send(t.Context(), srv.URL+"/200?token=abc", nil, ""); err == nil || strings.Contains(err.Error(), "token") {
		t.Errorf("nobody listens: %v", err)
	}
}

func TestAddressesOfTheInstallationAreRefused(t *testing.T) {
	asked := false
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked = true }))
	defer srv.Close()
	s := NewSender(nil, false)
	defer s.Close()
	port := srv.URL[strings.LastIndex(srv.URL, ":"):]
	for _, to := range []string{srv.URL, "http://localhost" + port, "http://169.254.169.254/latest", "http://10.1.2.3/", "http://[::1]" + port} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		err := s.Send(ctx, to, []byte("{}"), "")
		cancel()
		if !errors.Is(err, outbound.ErrRefused) {
			t.Errorf("%s: %v", to, err)
		}
	}
	if asked {
		t.Error("a service of this machine was called")
	}
}

func TestTwoMoreTriesTenSecondsApart(t *testing.T) {
	at := time.Unix(0, 0)
	var waits []time.Duration
	for calls := 1; ; calls++ {
		next, again := Next(calls, at)
		if !again {
			break
		}
		waits = append(waits, next.Sub(at))
		at = next
	}
	if fmt.Sprint(waits) != "[10s 10s]" {
		t.Errorf("%v", waits)
	}
}
