package rest_test

import (
	"encoding/base64"
	"strconv"
	"strings"
	"testing"
	"time"

	"gantry/fleet"
	"gantry/test/plane"
)

func init() {
	addRows(accountRows, "200 account with its money", "200 SSH keys", "422 SSH key")
	addRows(accountLimitRows, "200 limits", "403 quota exceeded")
	addRows(ownLimitRows, "200 own limits", "402 own spend limit", "200 own webhook", "422 URL", "422 event kind")
	addRows(partRows, "200 list in parts", "400 cursor")
	addRows(moreKeyRows, "key presets and permissions", "endpoints of a key", "200 key", "disabled and enabled keys", "last use of a key",
		"key of a key that expires")
}

// sshKey is a good key of the kind ssh-ed25519.
const sshKey = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"

func accountRows() []row {
	v := func(name, rule, method, path, key, body string, setup func(*testing.T, *plane.Plane)) row {
		return row{topic: "account", name: name, rule: rule, method: method, path: "/v2/account" + path, key: key, body: body, setup: setup}
	}
	credit := func(t *testing.T, p *plane.Plane) {
		if _, _, err := p.AddCredit(t.Context(), plane.Research, 100*fleet.Dollar, nil); err != nil {
			t.Fatal(err)
		}
	}
	put := func(name, rule, keys string) row {
		return v("ssh-put-"+name, rule, "PUT", "/ssh-keys", plane.User, `{"keys":`+keys+`}`, nil)
	}
	return []row{
		v("new", "200 account with its money", "GET", "", plane.Reader, "", nil),
		v("credited", "200 account with its money", "GET", "", plane.Reader, "", credit),
		v("spending", "200 account with its money", "GET", "", plane.Reader, "", func(t *testing.T, p *plane.Plane) {
			credit(t, p)
			makePod(t, p, fleet.EventRunning)
			p.Advance(90 * time.Minute)
		}),
		v("in-debt", "200 account with its money", "GET", "", plane.User, "", func(t *testing.T, p *plane.Plane) {
			makePod(t, p, fleet.EventRunning)
			p.Advance(time.Hour)
		}),
		v("other", "200 account with its money", "GET", "", plane.Other, "", credit),
		v("no-permission", "403 key without the permission", "GET", "", plane.Reader, "", func(_ *testing.T, p *plane.Plane) {
			p.Restrict(plane.Reader, map[fleet.Group]fleet.Access{fleet.GroupPods: fleet.AccessWrite})
		}),
		v("ssh-none", "200 SSH keys", "GET", "/ssh-keys", plane.Reader, "", nil),
		v("ssh-keys", "200 SSH keys", "GET", "/ssh-keys", plane.Reader, "", func(t *testing.T, p *plane.Plane) {
			if err := p.SetSSHKeys(t.Context(), p.Who(plane.User), []string{sshKey + " me@laptop"}); err != nil {
				t.Fatal(err)
			}
		}),
		v("ssh-of-another", "200 SSH keys", "GET", "/ssh-keys", plane.Other, "", func(t *testing.T, p *plane.Plane) {
			if err := p.SetSSHKeys(t.Context(), p.Who(plane.User), []string{sshKey}); err != nil {
				t.Fatal(err)
			}
		}),
		put("one", "200 SSH keys", `["`+sshKey+` me@laptop, the second"]`),
		put("twice", "200 SSH keys", `["`+sshKey+`","`+sshKey+`"]`),
		put("none", "200 SSH keys", `[]`),
		put("null", "422 null where nothing says so", `null`),
		put("number", "422 wrong type", `[1]`),
		put("form", "422 SSH key", `["`+sshKey+`","AAAAC3NzaC1lZDI1NTE5","ssh-ed25519","ssh-ed25519  AAAA"]`),
		put("private", "422 SSH key", `["-----BEGIN OPENSSH PRIVATE KEY-----"]`),
		put("base64", "422 SSH key", `["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5!AAAA"]`),
		put("cut", "422 SSH key", `["`+sshKey[:60]+`"]`),
		put("other-kind", "422 SSH key", `["`+strings.Replace(sshKey, "ssh-ed25519", "ssh-rsa", 1)+`"]`),
		put("two-lines", "422 SSH key", `["`+sshKey+`\n`+sshKey+`"]`),
		put("control", "422 SSH key", `["`+sshKey+` a\u001b[31m"]`),
		put("options", "422 SSH key", `["command=\"x\" `+sshKey+`"]`),
		put("many", "422 SSH key", `[`+strings.TrimSuffix(strings.Repeat(`"`+sshKey+`",`, 101), ",")+`]`),
		put("together", "422 SSH key", `["`+sshKey+" a"+strings.Repeat("c", 16<<10-100)+`","`+sshKey+" b"+strings.Repeat("c", 16<<10-100)+`","`+sshKey+`"]`),
		put("long", "422 SSH key", `["`+sshKey+" "+strings.Repeat("c", 16<<10)+`"]`),
		v("ssh-put-nothing", "422 missing field", "PUT", "/ssh-keys", plane.User, `{}`, nil),
		v("ssh-put-reader", "403 key without the permission", "PUT", "/ssh-keys", plane.Reader, `{"keys":[]}`, nil),
	}
}

// keyRow is a row about API keys.
func keyRow(name, rule, method, path, key, body string, setup func(*testing.T, *plane.Plane)) row {
	return row{topic: "keys-more", name: name, rule: rule, method: method, path: "/v2/account/keys" + path, key: key, body: body, setup: setup}
}

func moreKeyRows() []row {
	const reader = "/key00000000005"
	v := keyRow
	used := func(t *testing.T, p *plane.Plane) {
		p.Advance(time.Minute)
		p.Who(plane.Reader)
		must(t, p.FlushKeyUse(t.Context()))
		p.Advance(time.Hour)
	}
	return append(newKeyRows(), []row{
		v("get", "200 key", "GET", reader, plane.User, "", nil),
		v("get-used", "last use of a key", "GET", reader, plane.User, "", used),
		v("get-foreign", "404 foreign object", "GET", reader, plane.Other, "", nil),
		v("get-missing", "404 missing object", "GET", "/"+missingID, plane.User, "", nil),
		v("rename", "200 key", "PATCH", reader, plane.User, `{"name":"robot"}`, nil),
		v("disable", "disabled and enabled keys", "PATCH", reader, plane.User, `{"disabled":true}`, nil),
		v("patch-nothing", "200 key", "PATCH", reader, plane.User, `{}`, nil),
		v("patch-permissions", "422 unknown property", "PATCH", reader, plane.User, `{"permissions":{}}`, nil),
		v("patch-name", "422 bound", "PATCH", reader, plane.User, `{"name":""}`, nil),
		v("patch-type", "422 wrong type", "PATCH", reader, plane.User, `{"disabled":"yes"}`, nil),
		v("patch-foreign", "404 foreign object", "PATCH", reader, plane.Other, `{"disabled":true}`, nil),
		v("patch-reader", "403 key without the permission", "PATCH", reader, plane.Reader, `{"disabled":true}`, nil),
		v("disabled-refused", "disabled and enabled keys", "GET", "", plane.Reader, "", func(t *testing.T, p *plane.Plane) { disable(t, p, true) }),
		v("enabled-again", "disabled and enabled keys", "GET", reader, plane.Reader, "", func(t *testing.T, p *plane.Plane) {
			disable(t, p, true)
			disable(t, p, false)
		}),
	}...)
}

func newKeyRows() []row {
	create := func(name, rule, members string) row {
		return keyRow("create-"+name, rule, "POST", "", plane.User, `{"name":"ci"`+members+`}`, nil)
	}
	narrowed := func(name, rule, members string) row {
		r := create(name, rule, members)
		r.setup = func(_ *testing.T, p *plane.Plane) {
			p.Restrict(plane.User, map[fleet.Group]fleet.Access{fleet.GroupAccount: fleet.AccessWrite, fleet.GroupPods: fleet.AccessRead})
		}
		return r
	}
	expiring := func(name, members string) row {
		r := create(name, "key of a key that expires", members)
		r.setup = func(_ *testing.T, p *plane.Plane) { p.Expire(plane.User, p.Now().Add(time.Hour)) }
		return r
	}
	var ids []string
	for i := range 101 {
		ids = append(ids, `"endpoint`+strconv.Itoa(100000+i)+`"`)
	}
	return []row{
		create("least", "key presets and permissions", ``),
		create("restricted", "key presets and permissions", `,"preset":"restricted"`),
		create("permissions", "key presets and permissions", `,"permissions":{"pods":"write","catalog":"read"}`),
		create("permissions-none", "key presets and permissions", `,"permissions":{}`),
		create("preset-less", "key presets and permissions", `,"preset":"all","permissions":{"account":"none","billing":"read"}`),
		create("preset-more", "key presets and permissions", `,"preset":"readOnly","permissions":{"pods":"write"}`),
		create("invoke-all", "endpoints of a key", `,"preset":"restricted","invoke":"all"`),
		create("invoke-list", "endpoints of a key", `,"invoke":["endpoint000001"]`),
		create("invoke-none", "endpoints of a key", `,"invoke":[]`),
		create("invoke-word", "endpoints of a key", `,"invoke":"some"`),
		create("invoke-star", "endpoints of a key", `,"invoke":["*","endpoint000001"]`),
		create("invoke-null", "endpoints of a key", `,"invoke":null`),
		create("invoke-object", "endpoints of a key", `,"invoke":{"all":true}`),
		create("invoke-numbers", "endpoints of a key", `,"invoke":[1,2]`),
		create("invoke-many", "endpoints of a key", `,"invoke":[`+strings.Join(ids, ",")+`]`),
		create("group", "422 unknown property", `,"permissions":{"admin":"read","volumes":"read"}`),
		create("access", "422 enum", `,"permissions":{"pods":"admin"}`),
		create("expires-form", "422 pattern", `,"expiresAt":"2027-01-01"`),
		create("expires-null", "422 null where nothing says so", `,"expiresAt":null`),
		narrowed("beyond", "403 preset beyond the key", `,"permissions":{"pods":"write"}`),
		expiring("outliving", ``),
		expiring("outliving-by-a-year", `,"expiresAt":"2030-01-01T00:00:00Z"`),
		expiring("as-long", `,"expiresAt":"2026-10-01T13:00:00Z"`),
		narrowed("within", "key presets and permissions", `,"permissions":{"pods":"read","account":"write","billing":"none"}`),
	}
}

// disable disables or enables the key Reader.
func disable(t *testing.T, p *plane.Plane, yes bool) {
	t.Helper()
	if _, err := p.UpdateKey(t.Context(), p.Who(plane.User), "key00000000005", fleet.KeyUpdate{Disabled: &yes}); err != nil {
		t.Fatal(err)
	}
}

// accountLimitRows are the limits of accounts, as operators set them and as their owners meet them.
func accountLimitRows() []row {
	v := func(name, rule, method, path, body string) row {
		return row{topic: "account-limits", name: name, rule: rule, method: method, path: "/admin/v1/" + path, key: plane.Operator, body: body}
	}
	most := func(name string, value int64) func(*testing.T, *plane.Plane) {
		return func(t *testing.T, p *plane.Plane) {
			housed(t, p)
			if _, err := p.SetLimits(t.Context(), map[string]*int64{name: &value}); err != nil {
				t.Fatal(err)
			}
		}
	}
	roomy := func(name string, value int64) func(*testing.T, *plane.Plane) {
		return func(t *testing.T, p *plane.Plane) { roomForTwo(t, p); most(name, value)(t, p) }
	}
	refused := func(name, path, body string, setup func(*testing.T, *plane.Plane)) row {
		return row{topic: "account-limits", name: name, rule: "403 quota exceeded", method: "POST", path: path, key: plane.User, body: body, setup: setup}
	}
	const account, volume = "accounts/acc00000000002", `{"name":"datasets","size":100,"dataCenter":"dev-1"}`
	again := refused("pods-again", "/v2/pods", gpuBody, nil)
	again.rule, again.header, again.before = "create happens once", []string{"Idempotency-Key", "make-1"}, 1
	again.setup = most("pods", 1)
	return []row{
		v("default", "200 limits", "GET", "limits", ""),
		v("default-set", "200 limits", "PATCH", "limits", `{"pods":5,"spendPerHour":10,"gpus":null}`),
		v("default-null", "422 wrong type", "PATCH", "limits", `{"pods":"5"}`),
		v("default-bound", "422 bound", "PATCH", "limits", `{"pods":-1}`),
		v("default-unknown", "422 unknown property", "PATCH", "limits", `{"pets":1}`),
		v("account-set", "200 limits", "PATCH", account, `{"limits":{"pods":5,"gpus":null}}`),
		v("account-bound", "422 bound", "PATCH", account, `{"limits":{"clusters":1000000000001}}`),
		v("workers-set", "200 limits", "PATCH", account, `{"limits":{"workers":2}}`),
		v("workers-bound", "422 bound", "PATCH", account, `{"limits":{"workers":-1}}`),
		refused("pods", "/v2/pods", gpuBody, most("pods", 0)),
		refused("dry-run", "/v2/pods?dryRun=true", gpuBody, most("gpus", 0)),
		refused("bytes", "/v2/pods", gpuBody, most("specificationBytes", 1)),
		refused("spend", "/v2/pods", gpuBody, most("spendPerHour", 1)),
		refused("clusters", "/v2/clusters", clusterBody, roomy("clusters", 0)),
		refused("cluster-pods", "/v2/clusters", clusterBody, roomy("pods", 1)),
		refused("cluster-gpus", "/v2/clusters?dryRun=true", clusterBody, roomy("gpus", 15)),
		refused("volumes", "/v2/network-volumes", volume, most("networkVolumes", 0)),
		refused("volume-gb", "/v2/network-volumes", volume, most("networkVolumeGB", 99)),
		again,
	}
}

// ownLimitRows are what accounts say of their own money, and what is refused for it.
func ownLimitRows() []row {
	set := func(name, rule, key, body string) row {
		return row{topic: "own-limits", name: name, rule: rule, method: "PATCH", path: "/v2/account", key: key, body: body}
	}
	least := func(t *testing.T, p *plane.Plane) {
		housed(t, p)
		if _, err := p.SetAccount(t.Context(), p.Who(plane.User), fleet.AccountSettings{SpendLimit: new(fleet.Money(1))}); err != nil {
			t.Fatal(err)
		}
	}
	refused := func(name, path, body string) row {
		return row{topic: "own-limits", name: name, rule: "402 own spend limit", method: "POST", path: path, key: plane.User, body: body, setup: least}
	}
	again := func(name, rule, body string) row {
		r := set(name, rule, plane.User, body)
		r.warm = `{"webhook":{"url":"https://ops.example.com/secret?token=x","kinds":["pod"],"secret":"placeholder-secret"}}`
		return r
	}
	foreign := set("webhook-permission", "403 key without the permission", plane.User, `{"webhook":{"url":"https://example.com/","kinds":["pod"]}}`)
	foreign.setup = func(_ *testing.T, p *plane.Plane) {
		p.Restrict(plane.User, map[fleet.Group]fleet.Access{fleet.GroupAccount: fleet.AccessWrite})
	}
	null := set("null", "200 own limits", plane.User, `{"spendLimit":null}`)
	null.setup = least
	return []row{
		set("set", "200 own limits", plane.User, `{"spendLimit":20,"lowBalance":0}`),
		null,
		set("nothing", "200 own limits", plane.User, `{}`),
		set("bound", "422 bound", plane.User, `{"spendLimit":-1,"lowBalance":1000001}`),
		set("type", "422 wrong type", plane.User, `{"spendLimit":"20"}`),
		set("unknown", "422 unknown property", plane.User, `{"prepaid":false}`),
		set("reader", "403 key without the permission", plane.Reader, `{"spendLimit":20}`),
		set("webhook", "200 own webhook", plane.User,
			`{"webhook":{"url":"https://ops.example.com/secret?token=x","kinds":["pod","low-balance"],"secret":"placeholder-secret"}}`),
		again("webhook-changed", "200 own webhook", `{"webhook":{"url":"http://other.example.com"}}`),
		again("webhook-unsigned", "200 own webhook", `{"webhook":{"url":"http://other.example.com","kinds":["pod"],"secret":""}}`),
		again("webhook-none", "200 own webhook", `{"webhook":null}`),
		again("webhook-kept", "200 own limits", `{"spendLimit":20}`),
		set("webhook-url", "422 URL", plane.User, `{"webhook":{"url":"ftp://example.com/"}}`),
		set("webhook-login", "422 URL", plane.User, `{"webhook":{"url":"https://me:secret@example.com/"}}`),
		set("webhook-kind", "422 event kind", plane.User, `{"webhook":{"url":"https://example.com/","kinds":["host"]}}`),
		set("webhook-members", "422 bound", plane.User, `{"webhook":{"kinds":[],"secret":"short"}}`),
		foreign,
		refused("pod", "/v2/pods", gpuBody),
		refused("dry-run", "/v2/pods?dryRun=true", gpuBody),
		refused("volume", "/v2/network-volumes", `{"name":"datasets","size":100,"dataCenter":"dev-1"}`),
		refused("v1-pod", "/v1/pods", `{"imageName":"busybox","gpuTypeIds":["NVIDIA H100 80GB HBM3"]}`),
	}
}

// partRows are lists that are asked for in parts.
func partRows() []row {
	v := func(name, rule, query string) row {
		return row{topic: "lists", name: name, rule: rule, method: "GET", path: "/admin/v1/accounts?" + query, key: plane.Operator}
	}
	at := func(key string) string { return "&cursor=" + base64.RawURLEncoding.EncodeToString([]byte(key)) }
	return []row{
		v("first", "200 list in parts", "limit=1"),
		v("next", "200 list in parts", "limit=1"+at("acc00000000001")),
		v("behind-what-is-gone", "200 list in parts", "limit=1"+at("acc000000000015")),
		v("end", "200 list in parts", "limit=1"+at("acc99999999999")),
		v("bad-cursor", "400 cursor", "cursor=!"),
		v("no-limit", "422 parameter", "limit=0"),
		v("large-limit", "422 parameter", "limit=10001"),
	}
}
