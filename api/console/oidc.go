package console

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"log/slog"
	"net/http"
	"time"

	"golang.org/x/oauth2"

	"gantry/api/login"
	"gantry/api/problem"
	"gantry/api/proxy"
	"gantry/api/v2"
	"gantry/fleet"
)

const (
	oidcPath     = root + "/oidc"
	callbackPath = oidcPath + "/callback"
	triesCookie  = "__Host-gantry-oidc"
	triesPurpose = "oidc sign-in"
	triesLife    = 10 * time.Minute
	assertLife   = time.Minute
)

// CallbackPath is where a provider sends people back to.
const CallbackPath = callbackPath

// Provider knows who someone is; see oidc.Provider.
type Provider interface {
	Begin(ctx context.Context, state, nonce, verifier string) (string, error)
	Finish(ctx context.Context, code, nonce, verifier string) (fleet.Assertion, error)
}

// try is a sign-in through the provider that is under way. It lies in a cookie of the browser that began it, sealed.
type try struct {
	State    string    `json:"s"`
	Nonce    string    `json:"n"`
	Verifier string    `json:"v"`
	Until    time.Time `json:"t"`
}

// oidc begins a sign-in through the provider, or finishes one; another person's cannot be finished here, nor one twice.
func (c *Console) oidc(w http.ResponseWriter, r *http.Request, next http.Handler) {
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Referrer-Policy", "no-referrer")
	switch {
	case c.cfg.Provider == nil:
		refuse(w, r, fleet.NotFound("provider"))
	case r.Method != http.MethodGet:
		w.Header().Set("Allow", http.MethodGet)
		refuse(w, r, &fleet.Error{Code: fleet.CodeMethod, Msg: "the method is not allowed for this path"})
	case r.URL.Path == oidcPath:
		c.sendAway(w, r)
	default:
		c.takeBack(w, r, next)
	}
}

func (c *Console) sendAway(w http.ResponseWriter, r *http.Request) {
	one := try{State: rand.Text(), Nonce: rand.Text(), Verifier: oauth2.GenerateVerifier(), Until: c.cfg.Now().Add(triesLife)}
	to, err := c.cfg.Provider.Begin(r.Context(), one.State, one.Nonce, one.Verifier)
	if err != nil {
		c.failed(w, r, err)
		return
	}
	value, err := c.seal(triesPurpose, one)
	if err != nil {
		c.failed(w, r, err)
		return
	}
	c.setTry(w, value, int(triesLife/time.Second))
	http.Redirect(w, r, to, http.StatusSeeOther)
}

// setTry sets the cookie of a try, which comes back from another site.
func (c *Console) setTry(w http.ResponseWriter, value string, seconds int) {
	http.SetCookie(w, &http.Cookie{
		Name: triesCookie, Value: value, Path: "/", MaxAge: seconds, HttpOnly: true, Secure: true, SameSite: http.SameSiteLaxMode,
	})
}

func (c *Console) seal(purpose string, v any) (string, error) {
	plain, err := json.Marshal(v)
	if err != nil {
		return "", err
	}
	sealed, err := c.cfg.Sealer.Seal(purpose, plain)
	return base64.RawURLEncoding.EncodeToString(sealed), err
}

func (c *Console) takeBack(w http.ResponseWriter, r *http.Request, next http.Handler) {
	var one try
	sealed, _ := base64.RawURLEncoding.DecodeString(proxy.TakeCookie(r.Header, triesCookie)) // what is no base64 opens nothing
	plain, err := c.cfg.Sealer.Open(triesPurpose, sealed)
	c.setTry(w, "", -1)
	q := r.URL.Query()
	if err != nil || json.Unmarshal(plain, &one) != nil || !c.cfg.Now().Before(one.Until) ||
		subtle.ConstantTimeCompare([]byte(q.Get("state")), []byte(one.State)) != 1 {
		c.failed(w, r, fleet.Forbidden("this sign-in was begun elsewhere, or too long ago"))
		return
	}
	said, err := c.cfg.Provider.Finish(r.Context(), q.Get("code"), one.Nonce, one.Verifier)
	if err != nil {
		c.failed(w, r, err)
		return
	}
	said.Until = c.cfg.Now().Add(assertLife)
	assertion, err := c.seal(fleet.AssertionPurpose, said)
	if err != nil {
		c.failed(w, r, err)
		return
	}
	answer := post(r, login.SessionsPath, login.SignIn{Assertion: v2.Hidden(assertion)}, next)
	if answer.status != http.StatusCreated || c.begin(w, answer) != nil {
		c.log().Info("sign-in through the provider refused", "status", answer.status)
		http.Redirect(w, r, root+"?signin=refused", http.StatusSeeOther)
		return
	}
	http.Redirect(w, r, root, http.StatusSeeOther)
}

// failed leads back to the page, which says that it did not work; why is in the log.
func (c *Console) failed(w http.ResponseWriter, r *http.Request, err error) {
	c.log().Warn("sign-in through the provider failed", "err", err)
	word := "failed"
	if fleet.CodeOf(err) == fleet.CodeLimited || fleet.CodeOf(err) == fleet.CodeUnavailable {
		word = "unavailable"
	}
	w.Header().Set("X-Request-Id", problem.ChooseRequestID(r))
	http.Redirect(w, r, root+"?signin="+word, http.StatusSeeOther)
}

func (c *Console) log() *slog.Logger {
	if c.cfg.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return c.cfg.Log
}
