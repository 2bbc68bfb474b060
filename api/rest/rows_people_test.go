package rest_test

import (
	"net/http"
	"strings"
	"testing"

	"gantry/api/rest"
	"gantry/fleet"
	"gantry/test/plane"
)

func init() {
	addRows(peopleRows, "201 person", "200 people", "204 person", "409 person is there")
	addRows(meRows, "200 me", "204 me", "403 key in place of a person", "403 wrong password or code", "409 codes are needed", "422 password", "422 secret of codes")
	addRows(roleOfPersonRows, "role of a person", "401 ended session")
	addRows(deviceRows, "200 command line", "204 command line", "204 signed out", "409 key of no command line")
}

const totpSecret = "JBSWY3DPEHPK3PXPJBSWY3DPEHPK3PXP"

// ada makes a person who is signed in: a role in the account of User, and a viewer in that of Other.
func ada(role fleet.Role) func(*testing.T, *plane.Plane) {
	return func(_ *testing.T, p *plane.Plane) {
		p.MakePerson("ada@example.com", fleet.Membership{Account: plane.Research, Role: role}, fleet.Membership{Account: plane.Rival, Role: fleet.RoleViewer})
	}
}

// bySession is a row whose request is made in the session of ada.
func bySession(topic, name, rule, method, path, body string, role fleet.Role) row {
	return row{topic: topic, name: name, rule: rule, method: method, path: path, body: body, setup: ada(role), header: []string{"Authorization", "Bearer <session-1>"}}
}

func peopleRows() []row {
	v := func(name, rule, method, path, body string) row {
		return operator("people", name, rule, method, "people"+path, body, ada(fleet.RoleOwner))
	}
	const (
		made, all, done, there = "201 person", "200 people", "204 person", "409 person is there"
		id, none, body         = "/<person-1>", "/" + missingID, `{"login":"Bob@Example.com","memberships":[{"accountId":"acc00000000001","role":"viewer"}]}`
	)
	create := func(name, rule, body string) row { return v("create-"+name, rule, "POST", "", body) }
	patch := func(name, rule, body string) row { return v("update-"+name, rule, "PATCH", id, body) }
	reset := func(name, rule, body string) row { return v("reset-"+name, rule, "POST", id+"/reset", body) }
	down := v("create-no-leader", "503 outcome unknown", "POST", "", body)
	down.setup = func(_ *testing.T, p *plane.Plane) { p.SetDown(true) }
	nobody := v("list-none", all, "GET", "", "")
	nobody.setup = nil
	return []row{
		v("list", all, "GET", "", ""), nobody, byUser(v("list", "", "GET", "", "")), v("put", "405 with Allow", "PUT", "", body),
		bySession("people", "list-owner", "403 key without the permission", "GET", "/admin/v1/people", "", fleet.RoleOwner),

		create("with-password", made, body), down, byUser(create("with-password", "", body)),
		bySession("people", "create-owner", "403 key without the permission", "POST", "/admin/v1/people", body, fleet.RoleOwner),
		create("no-password", made, `{"login":"bob","memberships":[],"noPassword":true}`),
		create("there", there, strings.Replace(body, "Bob", "ADA", 1)),
		create("nothing", "422 missing field", `{}`), create("unknown", "422 unknown property", `{"login":"bob","memberships":[],"password":"x"}`),
		create("empty", "422 bound", `{"login":"","memberships":[]}`), create("long", "422 bound", `{"login":"`+strings.Repeat("b", 192)+`","memberships":[]}`),
		create("space", "422 pattern", `{"login":"bob b","memberships":[]}`), create("accent", "422 pattern", `{"login":"b\u00f6b","memberships":[]}`),
		create("type", "422 wrong type", `{"login":1,"memberships":{}}`), create("role", "422 enum", strings.Replace(body, "viewer", "admin", 1)),
		create("many", "422 bound", `{"login":"bob","memberships":[`+strings.TrimSuffix(strings.Repeat(`{"accountId":"a","role":"viewer"},`, 51), ",")+`]}`),
		create("twice", "422 bound", `{"login":"bob","memberships":[{"accountId":"acc00000000001","role":"viewer"},{"accountId":"acc00000000001","role":"owner"}]}`),
		create("no-account", "404 missing object", strings.Replace(body, "acc00000000001", missingID, 1)),

		patch("login", all, `{"login":"Ada.L@Example.com"}`), patch("disabled", all, `{"disabled":true}`),
		patch("memberships", all, `{"memberships":[{"accountId":"acc00000000002","role":"billing"}]}`), patch("nothing", all, `{}`),
		patch("role", "422 enum", `{"memberships":[{"accountId":"acc00000000002","role":"root"}]}`), patch("unknown", "422 unknown property", `{"totp":false}`),
		patch("no-account", "404 missing object", `{"memberships":[{"accountId":"`+missingID+`","role":"owner"}]}`),
		v("update-missing", "404 missing object", "PATCH", none, `{"disabled":true}`), byUser(patch("login", "", `{"login":"eve"}`)),

		reset("password", all, `{"password":true}`), reset("codes", all, `{"totp":true,"provider":true}`), reset("sessions", all, `{}`),
		reset("unknown", "422 unknown property", `{"codes":true}`), reset("type", "422 wrong type", `{"password":"new"}`),
		v("reset-missing", "404 missing object", "POST", none+"/reset", `{"password":true}`), byUser(reset("password", "", `{"password":true}`)),

		v("delete", done, "DELETE", id, ""), v("delete-missing", "404 missing object", "DELETE", none, ""), byUser(v("delete", "", "DELETE", id, "")),
	}
}

func meRows() []row {
	v := func(name, rule, method, path, body string) row {
		return bySession("me", name, rule, method, "/v2/me"+path, body, fleet.RoleViewer)
	}
	byKey := func(r row) row {
		r.name, r.rule, r.key, r.header = r.name+"-key", "403 key in place of a person", plane.User, nil
		return r
	}
	enrolled := func(r row) row {
		r.setup = func(t *testing.T, p *plane.Plane) {
			ada(fleet.RoleViewer)(t, p)
			who, err := p.Authenticate(t.Context(), fleet.Secret(p.Meant("<session-1>")))
			must(t, err)
			must(t, p.SetTOTP(t.Context(), who, plane.Password, totpSecret, codeNow(p)))
		}
		return r
	}
	const (
		done, wrong                = "204 me", "403 wrong password or code"
		chosen, password, codes    = `{"accountId":"acc00000000002"}`, `{"password":"correct horse battery","newPassword":"battery staple"}`, `{"password":"correct horse battery","secret":"` + totpSecret + `","code":"000000"}`
		choosePath, passwordPath   = "/account", "/password"
		codesPath, everywhere, out = "/totp", "/sessions", "/session"
	)
	unsigned := v("get-unsigned", "401 missing bearer token", "GET", "", "")
	unsigned.header = nil
	return []row{
		v("get", "200 me", "GET", "", ""), enrolled(v("get-codes", "200 me", "GET", "", "")), byKey(v("get", "", "GET", "", "")), unsigned,
		v("put", "405 with Allow", "PUT", "", `{}`),

		v("choose", done, "PUT", choosePath, chosen), byKey(v("choose", "", "PUT", choosePath, chosen)),
		v("choose-foreign", "404 foreign object", "PUT", choosePath, `{"accountId":"acc00000000003"}`),
		v("choose-missing", "404 missing object", "PUT", choosePath, `{"accountId":"`+missingID+`"}`),
		v("choose-nothing", "422 missing field", "PUT", choosePath, `{}`), v("choose-empty", "422 bound", "PUT", choosePath, `{"accountId":""}`),
		v("choose-role", "422 unknown property", "PUT", choosePath, `{"accountId":"acc00000000002","role":"owner"}`),

		v("password", done, "PUT", passwordPath, password), byKey(v("password", "", "PUT", passwordPath, password)),
		v("password-wrong", wrong, "PUT", passwordPath, strings.Replace(password, "correct", "another", 1)),
		v("password-same", "422 password", "PUT", passwordPath, `{"password":"correct horse battery","newPassword":"correct horse battery"}`),
		v("password-login", "422 password", "PUT", passwordPath, `{"password":"correct horse battery","newPassword":"Ada@example.com"}`),
		v("password-short", "422 bound", "PUT", passwordPath, `{"password":"correct horse battery","newPassword":"short"}`),
		v("password-long", "422 bound", "PUT", passwordPath, `{"password":"correct horse battery","newPassword":"`+strings.Repeat("x", 257)+`"}`),
		v("password-nothing", "422 missing field", "PUT", passwordPath, `{}`),

		v("codes", done, "PUT", codesPath, strings.Replace(codes, "000000", plane.CodeAt(totpSecret, plane.Start()), 1)), v("codes-wrong", wrong, "PUT", codesPath, codes), v("codes-wrong-password", wrong, "PUT", codesPath, strings.Replace(codes, "correct", "another", 1)),
		byKey(v("codes", "", "PUT", codesPath, codes)), enrolled(v("codes-again", "409 codes are needed", "PUT", codesPath, codes)),
		enrolled(v("codes-removed-wrong", wrong, "PUT", codesPath, `{"password":"correct horse battery","code":"000000"}`)),
		v("codes-secret", "422 secret of codes", "PUT", codesPath, strings.Replace(codes, "JBSW", "1111", 1)),
		v("codes-short", "422 bound", "PUT", codesPath, `{"password":"a","secret":"JBSW","code":"0"}`), v("codes-nothing", "422 missing field", "PUT", codesPath, `{}`),

		v("everywhere", done, "DELETE", everywhere, ""), byKey(v("everywhere", "", "DELETE", everywhere, "")), v("sign-out", done, "DELETE", out, ""),
	}
}

func codeNow(p *plane.Plane) string { return plane.CodeAt(totpSecret, p.Now()) }

// roleOfPersonRows ask for what a role may and may not do.
func roleOfPersonRows() []row {
	const pods, billing, account, keys = "/v2/pods", "/v2/billing/pods", "/v2/account", "/v2/account/keys"
	var out []row
	for _, role := range fleet.Roles() {
		v := func(name, method, path, body string, may bool) {
			rule := "403 key without the permission"
			if may {
				rule = "role of a person"
			}
			out = append(out, bySession("roles", string(role)+"-"+name, rule, method, path, body, role))
		}
		owner, writes := role == fleet.RoleOwner, role == fleet.RoleOwner || role == fleet.RoleDeveloper
		v("account", "GET", account, "", true)
		v("bills", "GET", billing, "", true)
		v("pods", "GET", pods, "", role != fleet.RoleBilling)
		v("pod", "POST", pods+"?dryRun=true", cpuBody, writes)
		v("key", "POST", keys, `{"name":"laptop"}`, owner)
		v("read-key", "POST", keys, `{"name":"laptop","preset":"readOnly"}`, owner)
		v("hosts", "GET", "/admin/v1/hosts", "", false)
	}
	ended := bySession("roles", "ended", "401 ended session", "GET", account, "", fleet.RoleOwner)
	ended.setup = func(t *testing.T, p *plane.Plane) {
		id := p.MakePerson("ada@example.com", fleet.Membership{Account: plane.Research, Role: fleet.RoleOwner}).ID
		_, err := p.ResetPerson(t.Context(), id, fleet.PersonReset{})
		must(t, err)
	}
	return append(out, ended)
}

// aDevice has a command line wait, under <device-1>.
func aDevice(_ *testing.T, p *plane.Plane) { p.Waiting() }

func deviceRows() []row {
	v := func(name, rule, method, path, body, key string) row {
		return row{topic: "devices", name: name, rule: rule, method: method, path: "/v2/me/devices/" + path, key: key, body: body, setup: aDevice}
	}
	viewer := func(r row) row {
		r.name, r.key, r.header = r.name+"-viewer", "", []string{"Authorization", "Bearer <session-1>"}
		r.setup = func(t *testing.T, p *plane.Plane) { aDevice(t, p); ada(fleet.RoleViewer)(t, p) }
		return r
	}
	const id, none, look, done, allow = "<device-1>", "BBBB-BBBB", "200 command line", "204 command line", `{"allow":true,"expiresInDays":30}`
	get := v("get", look, "GET", id, "", plane.User)
	decide := func(name, rule, body, key string) row { return v("decide-"+name, rule, "POST", id, body, key) }
	out := row{topic: "devices", name: "sign-out-key", rule: "409 key of no command line", method: "DELETE", path: "/v2/me/session", key: plane.Reader}
	own := row{topic: "devices", name: "sign-out", rule: "204 signed out", method: "DELETE", path: "/v2/me/session", header: []string{"Authorization", "Bearer <session-2>"}}
	own.setup = func(t *testing.T, p *plane.Plane) {
		ada(fleet.RoleViewer)(t, p)
		who, err := p.Authenticate(t.Context(), fleet.Secret(p.Meant("<session-1>")))
		must(t, err)
		p.LetIn(who)
	}
	return []row{
		get, viewer(get), v("get-reader", "403 key without the permission", "GET", id, "", plane.Reader), v("get-missing", "404 missing object", "GET", none, "", plane.User),
		decide("allow", done, allow, plane.User), viewer(decide("allow", done, allow, "")), decide("deny", done, `{"allow":false}`, plane.User),
		decide("reader", "403 key without the permission", allow, plane.Reader), v("decide-missing", "404 missing object", "POST", none, allow, plane.User),
		decide("days", "422 bound", `{"allow":true,"expiresInDays":367}`, plane.User), decide("nothing", "422 missing field", `{}`, plane.User),
		decide("unknown", "422 unknown property", `{"allow":true,"role":"owner"}`, plane.User), decide("type", "422 wrong type", `{"allow":"yes"}`, plane.User),
		out, own,
	}
}

// TestSecretsOfPeopleAreInNoAnswer looks for what only its owner may know in every answer about a person.
func TestSecretsOfPeopleAreInNoAnswer(t *testing.T) {
	s := newSite(t, unhindered, rest.Limits{})
	id := s.plane.MakePerson("ada@example.com", fleet.Membership{Account: plane.Research, Role: fleet.RoleOwner}).ID
	session := fleet.Secret(s.plane.Meant("<session-1>"))
	as := []string{"Authorization", "Bearer " + session.Reveal()}
	code := codeNow(s.plane)
	body := `{"password":"` + plane.Password + `","secret":"` + totpSecret + `","code":"` + code + `"}`
	if got := s.ask(t, "PUT", "/v2/me/totp", "", body, as...); got.status != http.StatusNoContent {
		t.Fatal(got.body)
	}
	for _, got := range []answer{
		s.ask(t, "PUT", "/v2/me/totp", "", body, as...),
		s.ask(t, "GET", "/v2/me", "", "", as...),
		s.ask(t, "GET", "/v2/audit", "", "", as...),
		s.ask(t, "GET", "/admin/v1/people", plane.Operator, ""),
		s.ask(t, "PATCH", "/admin/v1/people/"+string(id), plane.Operator, `{}`),
		s.ask(t, "GET", "/admin/v1/audit", plane.Operator, ""),
	} {
		for _, secret := range []string{plane.Password, totpSecret, session.Reveal(), "argon2id"} {
			if strings.Contains(got.body, secret) {
				t.Errorf("%s shows %s: %d %s", got.request, secret, got.status, got.body)
			}
		}
	}
}

// signedIn is the person who makes a row's request, if one does.
func (s *site) signedIn(t *testing.T, r row) fleet.Principal {
	t.Helper()
	if len(r.header) == 0 || r.key != "" {
		return fleet.Principal{}
	}
	who, err := s.plane.Authenticate(t.Context(), fleet.Secret(strings.TrimPrefix(s.plane.Meant(r.header[1]), "Bearer ")))
	if err != nil && fleet.CodeOf(err) != fleet.CodeUnauthorized {
		t.Fatal(err)
	}
	return who
}
