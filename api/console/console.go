// Package console serves the web console below /console, and keeps its sessions. The page uses the public API alone. A session is a
// cookie that holds an API key or the secret of a person's session, sealed, and the time at which it ends; it is stored nowhere here and
// is worth what that is worth. The package never decides what anybody may do: it turns the cookie of a request that the page itself sent
// into the header of the API.
package console

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"gantry/api/login"
	"gantry/api/problem"
	"gantry/api/proxy"
	"gantry/fleet"
	"gantry/internal/pki"
)

const (
	root        = "/console"
	sessionPath = root + "/session"
	cookieName  = "__Host-gantry-console"
	purpose     = "console session"
	// Header must be "1" in what the page sends, but for WebSockets: a page of another origin cannot set it.
	Header = "X-Gantry-Console"

	life     = 8 * time.Hour
	maxLogin = 1 << 10 // bytes of the body
)

// Config is what a Console is made from.
type Config struct {
	Sealer *pki.Sealer
	Ours   func(*http.Request) bool // whether a request is for the API's host; others pass unchanged
	S3     []string                 // addresses of the installation's S3 servers, which the page may call
	Now    func() time.Time
	// Provider knows people by OpenID Connect; nil: none was set up. ProviderName is how the page calls it.
	Provider     Provider
	ProviderName string
	Log          *slog.Logger // nil: none
}

// Console is safe for concurrent use.
type Console struct {
	cfg   Config
	files fs.FS
}

// New returns a Console with the files that the build has put into the binary, if any.
func New(cfg Config) *Console { return &Console{cfg: cfg, files: dist} }

// Owns reports whether a path is the console's.
func Owns(path string) bool { return path == root || strings.HasPrefix(path, root+"/") }

// Wrap returns a handler that serves the console, and gives all other requests to next, which is the API.
func (c *Console) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case !c.cfg.Ours(r):
			next.ServeHTTP(w, r)
		case r.URL.Path == sessionPath:
			c.session(w, r, next)
		case r.URL.Path == oidcPath || r.URL.Path == callbackPath:
			c.oidc(w, r, next)
		case Owns(r.URL.Path):
			c.serveFile(w, r)
		default:
			c.pass(w, r, next)
		}
	})
}

// pass hands a request to the API, with the key of its session. The cookie goes no further: endpoints of others are below the same
// host. What they answer has no rights of the console's origin, should a browser show it as a page.
func (c *Console) pass(w http.ResponseWriter, r *http.Request, next http.Handler) {
	value := proxy.TakeCookie(r.Header, cookieName)
	if value != "" && len(r.Header.Values("Authorization")) == 0 && fromPage(r) {
		if key, ok := c.open(value); ok {
			r.Header.Set("Authorization", "Bearer "+key.Reveal())
		}
	}
	r.Header.Del(Header)
	w.Header().Set("Content-Security-Policy", "sandbox")
	next.ServeHTTP(w, r)
}

// fromPage reports whether the console's page sent a request. Pods' pages may be of the same site, so that SameSite alone is not enough.
func fromPage(r *http.Request) bool {
	if site := r.Header.Get("Sec-Fetch-Site"); site != "" && site != "same-origin" {
		return false
	}
	origins := r.Header.Values("Origin")
	if len(origins) > 1 || len(origins) == 1 && !sameOrigin(origins[0], r.Host) {
		return false
	}
	if strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		return len(origins) == 1
	}
	return r.Header.Get(Header) == "1"
}

// sameOrigin reports whether an origin is that of host, by https or on this machine.
func sameOrigin(origin, host string) bool {
	u, err := url.Parse(origin)
	if err != nil || u.Host != host {
		return false
	}
	ip, _ := netip.ParseAddr(u.Hostname()) // the zero Addr is no loopback
	return u.Scheme == "https" || u.Scheme == "http" && (ip.IsLoopback() || u.Hostname() == "localhost")
}

// session tells of a session (GET), begins it (POST, with a key) or ends it (DELETE).
func (c *Console) session(w http.ResponseWriter, r *http.Request, next http.Handler) {
	w.Header().Set("Cache-Control", "no-store")
	switch {
	case r.Method != http.MethodGet && r.Method != http.MethodPost && r.Method != http.MethodDelete:
		w.Header().Set("Allow", "GET, POST, DELETE")
		refuse(w, r, &fleet.Error{Code: fleet.CodeMethod, Msg: "a session is read by GET, begun by POST and ended by DELETE"})
	case !fromPage(r) || r.Method != http.MethodGet && len(r.Header.Values("Origin")) == 0:
		refuse(w, r, fleet.Forbidden("only the console's own page, by https or on this machine, may ask for a session"))
	case r.Method == http.MethodGet:
		key, ok := c.open(proxy.TakeCookie(r.Header, cookieName))
		c.tell(w, r, key, ok, next)
	case r.Method == http.MethodDelete:
		if key, ok := c.open(proxy.TakeCookie(r.Header, cookieName)); ok {
			c.signOut(r, key, next)
		}
		setCookie(w, "", -1)
		w.WriteHeader(http.StatusNoContent)
	default:
		c.login(w, r, next)
	}
}

// signOut ends the session of a person. A key that was pasted stays.
func (c *Console) signOut(r *http.Request, key fleet.Secret, next http.Handler) {
	if ask(r, http.MethodGet, key, "/v2/me", nil, next).status == http.StatusOK {
		ask(r, http.MethodDelete, key, "/v2/me/session", nil, next)
	}
}

// tell says whether there is a session, whether its key may see the fleet, and how else one can sign in.
func (c *Console) tell(w http.ResponseWriter, r *http.Request, key fleet.Secret, ok bool, next http.Handler) {
	out := struct {
		SignedIn bool   `json:"signedIn"`
		Operator bool   `json:"operator"`
		Person   bool   `json:"person"`
		Provider string `json:"provider,omitempty"`
	}{Provider: c.cfg.ProviderName}
	if ok {
		answer := ask(r, http.MethodGet, key, "/v2/account", nil, next)
		if out.SignedIn = answer.knows(); !out.SignedIn && answer.status != http.StatusUnauthorized {
			answer.pass(w)
			return
		}
		out.Operator = out.SignedIn && ask(r, http.MethodGet, key, "/admin/v1/limits", nil, next).status == http.StatusOK
		out.Person = out.SignedIn && ask(r, http.MethodGet, key, "/v2/me", nil, next).status == http.StatusOK
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(out) // a client that left is not told
}

// login asks the API whether it knows the key, or has it sign a person in, under the limits that hold for all who ask, and then sets the
// cookie.
func (c *Console) login(w http.ResponseWriter, r *http.Request, next http.Handler) {
	var in struct {
		Key string
		login.SignIn
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxLogin))
	if err == nil && json.Unmarshal(body, &in) == nil && in.Key == "" && in.Login != "" {
		in.Assertion = ""
		if answer := post(r, login.SessionsPath, in.SignIn, next); answer.status != http.StatusCreated {
			answer.pass(w)
		} else if err := c.begin(w, answer); err != nil {
			refuse(w, r, err)
		} else {
			w.WriteHeader(http.StatusNoContent)
		}
		return
	}
	if err != nil || !fleet.ValidAPIKey(in.Key) {
		refuse(w, r, fleet.Invalid("$.key", "must be an API key"))
		return
	}
	key := fleet.Secret(in.Key)
	answer := ask(r, http.MethodGet, key, "/v2/account", nil, next)
	switch {
	case !answer.knows():
		answer.pass(w)
	case c.keep(w, key, c.cfg.Now().Add(life)) != nil:
		refuse(w, r, &fleet.Error{Code: fleet.CodeInternal})
	default:
		w.WriteHeader(http.StatusNoContent)
	}
}

// begin sets the cookie of a person's session that the API has begun.
func (c *Console) begin(w http.ResponseWriter, answer *kept) error {
	var made login.Session
	if err := json.Unmarshal(answer.body.Bytes(), &made); err != nil {
		return &fleet.Error{Code: fleet.CodeInternal}
	}
	return c.keep(w, fleet.Secret(made.Token), made.ExpiresAt)
}

// keep sets the cookie of a session that lasts until a time.
func (c *Console) keep(w http.ResponseWriter, key fleet.Secret, until time.Time) error {
	plain := binary.BigEndian.AppendUint64(nil, uint64(until.Unix())) //nolint:gosec // after 1970
	sealed, err := c.cfg.Sealer.Seal(purpose, append(plain, key.Reveal()...))
	if err != nil {
		return &fleet.Error{Code: fleet.CodeInternal}
	}
	setCookie(w, base64.RawURLEncoding.EncodeToString(sealed), int(until.Sub(c.cfg.Now())/time.Second))
	return nil
}

// post is ask for what someone whom the API does not know yet sends.
func post(r *http.Request, path string, body any, next http.Handler) *kept {
	text, err := json.Marshal(body)
	if err != nil {
		return &kept{status: http.StatusInternalServerError}
	}
	return ask(r, http.MethodPost, "", path, text, next)
}

// ask has the API answer a request with a key or, where that is empty, with none, as if the client had sent it.
func ask(r *http.Request, method string, key fleet.Secret, path string, body []byte, next http.Handler) *kept {
	req := r.Clone(r.Context())
	req.Method, req.URL, req.RequestURI = method, &url.URL{Path: path}, path
	req.Body, req.ContentLength, req.TransferEncoding = http.NoBody, 0, nil
	req.Header = http.Header{}
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key.Reveal())
	}
	if body != nil {
		req.Body, req.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		req.Header.Set("Content-Type", "application/json")
	}
	answer := &kept{header: http.Header{}}
	next.ServeHTTP(answer, req)
	return answer
}

func setCookie(w http.ResponseWriter, value string, seconds int) {
	http.SetCookie(w, &http.Cookie{
		Name: cookieName, Value: value, Path: "/", MaxAge: seconds, HttpOnly: true, Secure: true, SameSite: http.SameSiteStrictMode,
	})
}

// open returns the key of a session that has not ended. The server bounds the header, and with it the value.
func (c *Console) open(value string) (fleet.Secret, bool) {
	sealed, _ := base64.RawURLEncoding.DecodeString(value) // what is no base64 opens nothing
	plain, err := c.cfg.Sealer.Open(purpose, sealed)
	if err != nil || len(plain) < 8 || uint64(c.cfg.Now().Unix()) >= binary.BigEndian.Uint64(plain) { //nolint:gosec // after 1970
		return "", false
	}
	return fleet.Secret(plain[8:]), true
}

// kept is an answer of the API that the page does not get, or not at once.
type kept struct {
	header http.Header
	status int
	body   bytes.Buffer
}

// knows reports whether the API knows the key, be it one that may not read the account.
func (k *kept) knows() bool { return k.status == http.StatusOK || k.status == http.StatusForbidden }

// pass hands the answer over.
func (k *kept) pass(w http.ResponseWriter) {
	maps.Copy(w.Header(), k.header)
	w.WriteHeader(k.status)
	_, _ = w.Write(k.body.Bytes()) // a client that left is not told
}

func (k *kept) Header() http.Header { return k.header }

func (k *kept) WriteHeader(status int) { k.status = cmp.Or(k.status, status) }

func (k *kept) Write(p []byte) (int, error) {
	k.WriteHeader(http.StatusOK)
	return k.body.Write(p)
}

func refuse(w http.ResponseWriter, r *http.Request, err error) {
	problem.Write(w, problem.For(r, problem.From(err, problem.ChooseRequestID(r))))
}
