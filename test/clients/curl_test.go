package clients

import (
	"bytes"
	"context"
	"encoding/json"
	"os/exec"
	"strings"
	"testing"
	"time"

	"gantry/test/devtest"
)

// curl runs curl with a key and returns status, header and body.
func curl(t *testing.T, extra ...string) (status, header, body string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), callTimeout)
	defer cancel()
	// The key goes through a file of its own: arguments of processes can be read by everybody.
	cmd := exec.CommandContext(ctx, "curl", append([]string{"-sS", "-i", "--max-time", "20", "-K", "-"}, extra...)...)
	cmd.Stdin = strings.NewReader(`header = "Authorization: Bearer ` + suite.info.APIKey + `"`)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("curl %q: %v: %s", extra, err, &errs)
	}
	header, body, _ = strings.Cut(strings.ReplaceAll(out.String(), "\r\n", "\n"), "\n\n")
	return strings.Fields(header)[1], header, body
}

const jsonBody = "Content-Type: application/json"

// TestCurl walks through a pod's life as the documents' examples do.
func TestCurl(t *testing.T) {
	base := suite.info.API + "/v2/pods"
	create := []string{
		"-H", jsonBody, "-H", "Idempotency-Key: curl-1", "-d",
		`{"name":"curl","image":"` + devtest.Image + `","cpu":{"id":"cpu3c","vcpuCount":2},"args":"sh -c 'echo from curl; sleep 100'"}`, base,
	}
	status, header, text := curl(t, create...)
	var made pod
	if err := json.Unmarshal([]byte(text), &made); status != "201" || err != nil || made.ID == "" {
		t.Fatalf("%s\n%s: %v", header, text, err)
	}
	for _, name := range []string{"Ratelimit: \"minute\";r=", "Ratelimit-Policy: \"minute\";q=", "X-Request-Id: "} {
		if !strings.Contains(strings.ToLower(header), strings.ToLower(name)) {
			t.Errorf("the answer lacks %q:\n%s", name, header)
		}
	}
	var again pod
	status, header, text = curl(t, create...)
	if err := json.Unmarshal([]byte(text), &again); status != "201" || err != nil || again.ID != made.ID || !strings.Contains(header, "Idempotent-Replayed: true") {
		t.Errorf("the same create again: %s\n%s: %v", header, text, err)
	}
	if status, _, text := curl(t, "-H", jsonBody, "-H", "Idempotency-Key: curl-1", "-d", `{"name":"b","image":"b","cpu":{"id":"cpu3c","vcpuCount":2}}`, base); status != "422" {
		t.Errorf("another create with the same key: %s %s", status, text)
	}
	err := devtest.Until(reachTimeout, func() error {
		_, _, text := curl(t, base+"/"+made.ID)
		return wants(text, `"status":"RUNNING"`)
	})
	if err != nil {
		t.Fatal(err)
	}
	err = devtest.Until(reachTimeout, func() error { // a pod may run before it has said anything
		status, header, text = curl(t, base+"/"+made.ID+"/logs?follow=false&source=container")
		if status != "200" || wants(header, "text/event-stream") != nil {
			t.Fatalf("logs: %s\n%s", header, text)
		}
		return wants(text, `"line":"from curl"`)
	})
	if err != nil {
		t.Error(err)
	}
	began := time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)
	err = devtest.Until(reachTimeout, func() error {
		_, _, text := curl(t, "-G", "--data-urlencode", "startTime="+began, suite.info.API+"/v2/billing/pods")
		return wants(text, made.ID)
	})
	if err != nil {
		t.Error(err)
	}
	for _, c := range []struct {
		want string
		args []string
	}{
		{"422", []string{"-H", jsonBody, "-X", "PATCH", "-d", `{"nickname":"x"}`, base + "/" + made.ID}},
		{"200", []string{"-H", jsonBody, "-X", "PATCH", "-d", `{"name":"patched"}`, base + "/" + made.ID}},
		{"415", []string{"-X", "PATCH", "-d", `{"name":"x"}`, base + "/" + made.ID}},
		{"400", []string{"-H", jsonBody, "-X", "PATCH", "-d", `{"name":`, base + "/" + made.ID}},
		{"409", []string{"-H", jsonBody, "-d", `{"action":"start"}`, base + "/" + made.ID + "/action"}},
		{"405", []string{"-X", "PUT", base}},
		{"404", []string{base + "/a2345678901234"}},
		{"401", []string{"-H", "Authorization: Basic eA==", base}},
		{"204", []string{"-X", "DELETE", base + "/" + made.ID}},
	} {
		if status, header, text := curl(t, c.args...); status != c.want {
			t.Errorf("%q: want %s\n%s\n%s", c.args, c.want, header, text)
		}
	}
	if status, header, text := curl(t, suite.info.API+"/docs"); status != "200" || wants(header, "text/html") != nil || wants(text, "/v2/pods/{id}") != nil {
		t.Errorf("docs: %s %.200s", header, text)
	}
}

type lacks string

func (l lacks) Error() string { return "lacks " + string(l) }

func wants(text, part string) error {
	if strings.Contains(text, part) {
		return nil
	}
	return lacks(part + ": " + text)
}
