package main

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"gantry/serverless/webhook"
)

// TestWebhookFlags: a range is a range.
func TestWebhookFlags(t *testing.T) {
	for args, fault := range map[string]string{
		"": "", "--webhook-allow 10.0.0.0/8 --loopback-webhooks": "", "--webhook-allow 10.0.0.1/8": "--webhook-allow", "--webhook-allow x": "--webhook-allow",
		"--requests-per-worker 0": "--requests-per-worker",
	} {
		c := settings(t, strings.Fields("--listen localhost:80 "+args)...)
		if err := c.validate(); (err == nil) != (fault == "") || err != nil && !strings.Contains(err.Error(), fault) {
			t.Errorf("%s: %v", args, err)
		}
	}
}

// TestEventsReachAWebhookOfTheAccount sends the events of many secrets, half of them made before the leader is killed and half of them
// after: each arrives, signed.
func TestEventsReachAWebhookOfTheAccount(t *testing.T) {
	const key = "0123456789abcdef"
	w := three(t)
	for _, m := range w.all {
		m.kill()
		m.start("--loopback-webhooks")
		w.awaitVoters(3)
	}
	var mu sync.Mutex
	heard := map[string]int{}
	owner := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		at, signature, _ := strings.Cut(r.Header.Get(webhook.SignatureHeader), ",v1=")
		mac := hmac.New(sha256.New, []byte(key))
		_, _ = mac.Write([]byte(strings.TrimPrefix(at, "t=") + "." + string(body)))
		var got struct {
			Events []struct{ Kind, ID, Type string }
		}
		if err := json.Unmarshal(body, &got); err != nil || signature != hex.EncodeToString(mac.Sum(nil)) {
			t.Errorf("called with %s, signed %q: %v", body, r.Header.Get(webhook.SignatureHeader), err)
		}
		mu.Lock()
		defer mu.Unlock()
		for _, e := range got.Events {
			heard[e.Kind+" "+e.Type+" "+e.ID]++
		}
	}))
	defer owner.Close()
	user := func(method, path string, body any) {
		t.Helper()
		var last string
		w.eventually(method+" "+path, func() bool {
			for _, m := range w.running() {
				status, out, err := w.ask(m, w.keys.APIKey, method, path, body)
				if last = fmt.Sprint(status, string(out), err); err == nil && status < http.StatusMultipleChoices {
					return true
				}
			}
			return false
		}, func() string { return last })
	}
	user(http.MethodPatch, "/v2/account", map[string]any{"webhook": map[string]any{"url": owner.URL + "/hook", "kinds": []string{"secret"}, "secret": key}})
	for i := range 40 {
		if i == 20 {
			w.leader().kill()
		}
		user(http.MethodPut, fmt.Sprintf("/v2/secrets/S%d", i), map[string]any{"value": "v"})
	}
	missing := func() (out []string) {
		mu.Lock()
		defer mu.Unlock()
		for i := range 40 {
			if heard[fmt.Sprintf("secret created S%d", i)] == 0 {
				out = append(out, fmt.Sprint("S", i))
			}
		}
		return out
	}
	w.eventually("every event arrived", func() bool { return len(missing()) == 0 }, func() string { return fmt.Sprint(missing(), heard) })
}
