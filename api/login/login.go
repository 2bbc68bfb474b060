// Package login is the face for those whom nobody knows yet: people who sign in, and command lines that ask to be let in (RFC 8628). It
// reads at most a kilobyte, keeps nothing, and gives the address of the client to the service, which bounds what each may try.
package login

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode"

	"gantry/api/problem"
	"gantry/api/v2"
	"gantry/fleet"
	"gantry/internal/share"
)

const (
	prefix = "/login/v1/"
	// SessionsPath begins a session of a person.
	SessionsPath = prefix + "sessions"
	// DevicePath is where a command line asks for codes (RFC 8628).
	DevicePath = prefix + "device"
	// TokenPath is where it polls.
	TokenPath = prefix + "token"
	// ClientID is the only one that TokenPath knows.
	ClientID = "gantry"
	// GrantType is that of RFC 8628.
	GrantType = "urn:ietf:params:oauth:grant-type:device_code"
	// ReadOnly is the scope of a command line that is to read only.
	ReadOnly = "readOnly"

	maxBody = 1 << 10
	maxName = 64
	within  = 20 * time.Second
)

// Service signs people in and lets command lines wait; see scheduler.Service.
type Service interface {
	SignIn(ctx context.Context, in fleet.SignIn) (token fleet.Secret, until time.Time, err error)
	BeginDevice(ctx context.Context, req fleet.DeviceRequest) (fleet.DeviceCodes, error)
	// TakeDevice returns the key of a command line that was let in, or an error whose text is one of RFC 8628.
	TakeDevice(ctx context.Context, code fleet.Secret) (fleet.Secret, error)
}

// Owns reports whether a path is the face's.
func Owns(path string) bool { return strings.HasPrefix(path, prefix) }

// API is the face.
type API struct {
	service Service
	url     string // of the API
	log     *slog.Logger
}

// New returns an API whose people come to the console at url.
func New(service Service, url string, log *slog.Logger) *API { return &API{service, url, log} }

// Session is what a new session is answered with.
type Session struct {
	Token     v2.Hidden `json:"token"`
	ExpiresAt time.Time `json:"expiresAt"`
}

// SignIn is the body that begins a session.
type SignIn struct {
	Login       string    `json:"login"`
	Password    v2.Hidden `json:"password"`
	Code        string    `json:"code"`
	NewPassword v2.Hidden `json:"newPassword"`
	Assertion   v2.Hidden `json:"assertion"`
}

// ServeHTTP implements http.Handler.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	id := problem.ChooseRequestID(r)
	w.Header().Set("X-Request-Id", id)
	w.Header().Set("Cache-Control", "no-store")
	ctx, cancel := context.WithTimeout(problem.WithRequestID(r.Context(), id), within)
	defer cancel()
	r = r.WithContext(ctx)
	serve := map[string]func(http.ResponseWriter, *http.Request) error{SessionsPath: a.signIn, DevicePath: a.device, TokenPath: a.token}[r.URL.Path]
	var err error
	switch {
	case serve == nil:
		problem.Write(w, problem.NoPath(id))
		return
	case r.Method != http.MethodPost:
		w.Header().Set("Allow", http.MethodPost)
		err = &fleet.Error{Code: fleet.CodeMethod, Msg: "the method is not allowed for this path"}
	default:
		err = serve(w, r)
	}
	if err != nil {
		problem.Answer(w, r, a.log, err)
	}
}

// read returns the body, which must be of a media type. Errors: media_type, too_large, malformed.
func read(w http.ResponseWriter, r *http.Request, kind string) ([]byte, error) {
	if got, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || got != kind {
		return nil, &fleet.Error{Code: fleet.CodeMediaType, Msg: "the content type must be " + kind}
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	var over *http.MaxBytesError
	switch {
	case errors.As(err, &over):
		return nil, &fleet.Error{Code: fleet.CodeTooLarge, Msg: "the request body is larger than 1024 bytes"}
	case err != nil:
		return nil, &fleet.Error{Code: fleet.CodeMalformed, Msg: "the request body could not be read"}
	}
	return body, nil
}

func (a *API) signIn(w http.ResponseWriter, r *http.Request) error {
	body, err := read(w, r, "application/json")
	if err != nil {
		return err
	}
	var in SignIn
	if json.Unmarshal(body, &in) != nil || (in.Login == "" || in.Password == "") == (in.Assertion == "") {
		return &fleet.Error{Code: fleet.CodeMalformed, Msg: "the body must be JSON with login and password"}
	}
	token, until, err := a.service.SignIn(r.Context(), fleet.SignIn{
		Login: in.Login, Password: fleet.Secret(in.Password), Code: in.Code, NewPassword: fleet.Secret(in.NewPassword),
		Assertion: fleet.Secret(in.Assertion), Address: share.Of(r.RemoteAddr).String(),
	})
	if err != nil {
		return err
	}
	return answer(w, http.StatusCreated, Session{Token: v2.Hidden(token), ExpiresAt: until})
}

// form reads what a client of OAuth sends.
func form(w http.ResponseWriter, r *http.Request) (url.Values, error) {
	body, err := read(w, r, "application/x-www-form-urlencoded")
	if err != nil {
		return nil, err
	}
	in, err := url.ParseQuery(string(body))
	if err != nil {
		return nil, &fleet.Error{Code: fleet.CodeMalformed, Msg: "the body is no form"}
	}
	return in, nil
}

func (a *API) device(w http.ResponseWriter, r *http.Request) error {
	in, err := form(w, r)
	scope := in.Get("scope")
	switch {
	case err != nil:
		return err
	case in.Get("client_id") != ClientID:
		return refuse(w, "invalid_client")
	case scope != "" && scope != "all" && scope != ReadOnly:
		return refuse(w, "invalid_scope")
	}
	codes, err := a.service.BeginDevice(r.Context(), fleet.DeviceRequest{
		Name: shown(in.Get("device_name")), Address: share.Of(r.RemoteAddr).String(), ReadOnly: scope == ReadOnly,
	})
	if err != nil {
		return err
	}
	page := a.url + "/console/device"
	return answer(w, http.StatusOK, map[string]any{
		"device_code": codes.Device.Reveal(), "user_code": codes.User, "verification_uri": page, "verification_uri_complete": page + "?code=" + codes.User,
		"expires_in": int(codes.Expires / time.Second), "interval": int(codes.Interval / time.Second),
	})
}

// shown is a machine's name as a person is shown it: printable, and short.
func shown(name string) string {
	out := []rune{}
	for _, c := range name {
		if c != unicode.ReplacementChar && unicode.IsPrint(c) && len(out) < maxName {
			out = append(out, c)
		}
	}
	if len(out) == 0 {
		return "unnamed"
	}
	return string(out)
}

func (a *API) token(w http.ResponseWriter, r *http.Request) error {
	in, err := form(w, r)
	switch {
	case err != nil:
		return err
	case in.Get("client_id") != ClientID:
		return refuse(w, "invalid_client")
	case in.Get("grant_type") != GrantType:
		return refuse(w, "unsupported_grant_type")
	}
	key, err := a.service.TakeDevice(r.Context(), fleet.Secret(in.Get("device_code")))
	if err != nil {
		return refuse(w, err.Error())
	}
	return answer(w, http.StatusOK, map[string]any{"access_token": key.Reveal(), "token_type": "Bearer"})
}

// refuse answers as RFC 6749 has it, 5.2.
func refuse(w http.ResponseWriter, code string) error {
	return answer(w, http.StatusBadRequest, map[string]any{"error": code})
}

func answer(w http.ResponseWriter, status int, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write(body) // a client that left is not told
	return nil
}
