package rest_test

import (
	"net/http"
	"strings"
	"testing"

	"gantry/api/rest"
	"gantry/fleet"
	"gantry/test/plane"
)

// TestListsShowOwnThingsOnly makes one thing of each kind for User and reads every list with the key of another
// account, and then with User's.
func TestListsShowOwnThingsOnly(t *testing.T) {
	s := newSite(t, nil, rest.Limits{})
	joined(t, s.plane)
	pod, template, registry := makePod(t, s.plane), makeTemplate(t, s.plane, nil), makeRegistry(t, s.plane)
	endpoint := makeEndpoint(t, s.plane, func(*fleet.EndpointSpec) {})
	must(t, s.plane.SetSSHKeys(t.Context(), s.plane.Who(plane.User), []string{sshKey}))
	for path, own := range map[string]string{
		"/v2/pods": string(pod), "/v2/templates": string(template), "/v2/registries": string(registry), "/v2/account/ssh-keys": sshKey,
		"/v2/serverless":   string(endpoint),
		"/v2/account/keys": "key00000000005", "/v2/account": string(plane.Research), "/v2/network": string(fleet.AccountOverlay(plane.Research)),
	} {
		if got := s.ask(t, "GET", path, plane.Other, ""); got.status != http.StatusOK || strings.Contains(got.body, own) {
			t.Errorf("%s of another account: %d %s", path, got.status, got.body)
		}
		if got := s.ask(t, "GET", path, plane.User, ""); got.status != http.StatusOK || !strings.Contains(got.body, own) {
			t.Errorf("%s of its own account: %d %s", path, got.status, got.body)
		}
	}
	for _, source := range []string{"official", "verified", "community"} { // what is not public is in no slice of the catalog
		if got := s.ask(t, "GET", "/v2/catalog/templates?source="+source, plane.Other, ""); strings.Contains(got.body, string(template)) {
			t.Errorf("%s: %s", source, got.body)
		}
	}
}
