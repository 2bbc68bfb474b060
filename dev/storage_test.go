package dev

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gantry/api/admin"
	"gantry/client"
)

// TestTheFirstAgentHasNetworkVolumes: once, whatever the operator of a dev changed since.
func TestTheFirstAgentHasNetworkVolumes(t *testing.T) {
	var asked, backends []string
	mux := http.NewServeMux()
	mux.HandleFunc("PATCH /admin/v1/hosts/{id}", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		asked = append(asked, r.PathValue("id")+" "+strings.TrimSpace(string(body)))
		_, _ = w.Write([]byte("{}"))
	})
	mux.HandleFunc("GET /admin/v1/volume-backends", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"backends":[` + strings.Join(backends, ",") + `]}`))
	})
	mux.HandleFunc("POST /admin/v1/volume-backends", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		backends = append(backends, string(body))
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write(body)
	})
	api := httptest.NewServer(mux)
	defer api.Close()
	operator, err := client.New(api.URL, "key", "test")
	if err != nil {
		t.Fatal(err)
	}
	defer operator.Close()
	d := &dev{folder: &folder{dir: t.TempDir()}, state: state{DataCenter: "dev-1"}, hosts: []admin.Host{{ID: "another"}, {ID: "agent"}}}
	if err := d.provide(t.Context(), operator); err != nil {
		t.Fatal(err)
	}
	d.hosts[1].Roles = []string{"s3", "storage"}
	if err := d.provide(t.Context(), operator); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{`agent {"roles":["storage"]}`}, asked); diff != "" {
		t.Errorf("roles (-want +got):\n%s", diff)
	}
	if len(backends) != 1 {
		t.Fatalf("backends %q", backends)
	}
	var got admin.CreateBackendRequest
	if err := json.Unmarshal([]byte(backends[0]), &got); err != nil {
		t.Fatal(err)
	}
	at, first := d.folder.path("volumes"), "agent"
	want := admin.CreateBackendRequest{
		ID: "dev", DataCenterID: "dev-1", Type: "STANDARD", Kind: "local",
		BackendSettings: admin.BackendSettings{Local: &admin.LocalBackend{Path: at}, StorageHost: &first, StoragePath: &at},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("backend (-want +got):\n%s", diff)
	}
	if info, err := os.Stat(at); err != nil || !info.IsDir() {
		t.Errorf("%v, %v", info, err)
	}
}
