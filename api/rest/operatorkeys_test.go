package rest_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"gantry/api/limit"
	"gantry/api/rest"
	"gantry/fleet"
	"gantry/test/plane"
)

// made makes a key through the API and returns its text.
func made(t *testing.T, s *site, key fleet.Secret, path, body string) (fleet.Secret, int) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.base+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+key.Reveal())
	res, err := s.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	var out struct {
		APIKey fleet.Secret `json:"apiKey"`
	}
	text, err := io.ReadAll(res.Body)
	if err != nil || json.Unmarshal(text, &out) != nil {
		t.Fatalf("%v %s", err, text)
	}
	return out.APIKey, res.StatusCode
}

// TestOperatorsThatOnlyRead goes through every route of operators with keys that may only read them.
func TestOperatorsThatOnlyRead(t *testing.T) {
	s := newSite(t, func(c *rest.Config) { c.Rates = limit.Quotas{} }, rest.Limits{})
	operator := plane.KeyText(plane.Operator)
	var own struct{ ID string }
	account := func() string {
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, s.base+"/v2/account", nil)
		req.Header.Set("Authorization", "Bearer "+operator.Reveal())
		res, err := s.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = res.Body.Close() }()
		if err := json.NewDecoder(res.Body).Decode(&own); err != nil {
			t.Fatal(err)
		}
		return own.ID
	}()
	keys := "/admin/v1/accounts/" + account + "/keys"
	for _, body := range []string{`{"name":"watch","preset":"adminReadOnly"}`, `{"name":"watch","preset":"restricted","permissions":{"admin":"read"}}`} {
		reader, status := made(t, s, operator, keys, body)
		if status != http.StatusCreated {
			t.Fatalf("%s: %d", body, status)
		}
		routes := 0
		for what, op := range operations(t, s.api) {
			method, path, _ := strings.Cut(what, " ")
			if !strings.HasPrefix(path, "/admin/") {
				continue
			}
			routes++
			var content []byte
			if op.RequestBody != nil {
				content = op.RequestBody.Content["application/json"].Example
			}
			req, err := http.NewRequestWithContext(t.Context(), method, s.base+strings.NewReplacer("{id}", "aaaaaaaaaaaaaa").Replace(path), bytes.NewReader(content))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/json")
			req.Header.Set("Authorization", "Bearer "+reader.Reveal())
			res, err := s.client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			text, _ := io.ReadAll(res.Body)
			_ = res.Body.Close()
			reads := method == http.MethodGet && path != "/admin/v1/snapshot" // which holds what every account has
			if refused := res.StatusCode == http.StatusForbidden; refused == reads {
				t.Errorf("%s: %d %s", what, res.StatusCode, text)
			}
			if !reads && !strings.Contains(string(text), "this key lacks admin:write: it has admin:read") {
				t.Errorf("%s does not say what is missing: %s", what, text)
			}
		}
		if routes < 40 {
			t.Errorf("only %d routes", routes)
		}
		if _, status := made(t, s, reader, keys, `{"name":"more","preset":"admin"}`); status != http.StatusForbidden {
			t.Errorf("a key that reads makes one that writes: %d", status)
		}
	}
	// An account's own route makes no operator's key, not even with one.
	for _, body := range []string{`{"name":"x","preset":"adminReadOnly"}`, `{"name":"x","permissions":{"admin":"read"}}`} {
		if _, status := made(t, s, operator, "/v2/account/keys", body); status != http.StatusUnprocessableEntity {
			t.Errorf("%s: %d", body, status)
		}
	}
}

// TestNamesSteerNoTerminal: no route takes a name with controls or marks of direction.
func TestNamesSteerNoTerminal(t *testing.T) {
	s := newSite(t, func(c *rest.Config) { c.Rates = limit.Quotas{} }, rest.Limits{})
	for _, name := range []string{`\u001b[31m`, `\u009b31m`, `\u0085`, `\u202egnp`, `\u2066a`} {
		for path, body := range map[string]string{
			"/v2/pods":            `{"name":"` + name + `","image":"busybox","cpu":{"id":"cpu3g","vcpuCount":2}}`,
			"/v2/templates":       `{"name":"` + name + `","image":"busybox"}`,
			"/v2/network-volumes": `{"name":"` + name + `","size":10,"dataCenter":"EU-RO-1"}`,
			"/v2/account/keys":    `{"name":"` + name + `"}`,
			"/v2/registries":      `{"name":"` + name + `","username":"u","password":"p"}`,
			"/v2/s3-keys":         `{"name":"` + name + `"}`,
			"/admin/v1/accounts":  `{"name":"` + name + `"}`,
			"/v1/networkvolumes":  `{"name":"` + name + `","size":10,"dataCenterId":"EU-RO-1"}`,
		} {
			if _, status := made(t, s, plane.KeyText(plane.Operator), path, body); status < 400 || status > 422 || status == http.StatusNotFound {
				t.Errorf("%s takes the name %s: %d", path, name, status)
			}
		}
	}
}
