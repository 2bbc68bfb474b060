package login

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"gantry/fleet"
)

type fake struct {
	asked fleet.SignIn
	dev   fleet.DeviceRequest
	err   error
}

func (f *fake) SignIn(_ context.Context, in fleet.SignIn) (fleet.Secret, time.Time, error) {
	f.asked = in
	return "token", time.Unix(1e9, 0), f.err
}

func (f *fake) BeginDevice(_ context.Context, req fleet.DeviceRequest) (fleet.DeviceCodes, error) {
	f.dev = req
	return fleet.DeviceCodes{Device: "dev", User: "BCDF-GHJK", Expires: time.Minute, Interval: time.Second}, f.err
}

func (f *fake) TakeDevice(context.Context, fleet.Secret) (fleet.Secret, error) { return "key", f.err }

func send(f *fake, method, path, kind, body string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Header.Set("Content-Type", kind)
	r.RemoteAddr = "192.0.2.7:1234"
	New(f, "https://api.example.com", slog.New(slog.DiscardHandler)).ServeHTTP(w, r)
	return w
}

const (
	jsonType = "application/json"
	formType = "application/x-www-form-urlencoded"
)

func TestStrangersSendAKilobyte(t *testing.T) {
	long := strings.Repeat("x", maxBody)
	for _, tt := range []struct {
		method, path, kind, body string
		status                   int
	}{
		{"POST", SessionsPath, jsonType, `{"login":"a","password":"` + long + `"}`, 413},
		{"POST", DevicePath, formType, "client_id=gantry&device_name=" + long, 413},
		{"POST", TokenPath, formType, "device_code=" + long, 413},
		{"POST", SessionsPath, formType, `{"login":"a","password":"b"}`, 415},
		{"POST", DevicePath, jsonType, "client_id=gantry", 415},
		{"POST", SessionsPath, jsonType, `{"login":"a"}`, 400},
		{"POST", SessionsPath, jsonType, `{"login":"a","password":"b","assertion":"c"}`, 400},
		{"POST", SessionsPath, jsonType, `{`, 400},
		{"POST", DevicePath, formType, "client_id=other", 400},
		{"POST", DevicePath, formType, "client_id=gantry&scope=admin", 400},
		{"POST", DevicePath, formType, "%zz", 400},
		{"POST", TokenPath, formType, "client_id=gantry&grant_type=password", 400},
		{"GET", SessionsPath, jsonType, "", 405},
		{"POST", "/login/v1/other", jsonType, "{}", 404},
		{"POST", SessionsPath, jsonType, `{"login":"a","password":"b"}`, 201},
	} {
		f := &fake{}
		if w := send(f, tt.method, tt.path, tt.kind, tt.body); w.Code != tt.status || w.Code != 201 && (f.asked != fleet.SignIn{} || f.dev != fleet.DeviceRequest{}) {
			t.Errorf("%s %s %.60s: %d %s", tt.method, tt.path, tt.body, w.Code, w.Body)
		}
	}
}

func TestTheServiceIsToldTheAddress(t *testing.T) {
	f := &fake{err: &fleet.Error{Code: fleet.CodeLimited, Msg: "later", After: 1500 * time.Millisecond}}
	w := send(f, "POST", SessionsPath, jsonType, `{"login":"a","password":"b","code":"123456"}`)
	if w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") != "2" || f.asked.Address != "192.0.2.7" || f.asked.Code != "123456" {
		t.Errorf("%d %v %+v", w.Code, w.Header(), f.asked)
	}
}

func TestDevicesAreAnsweredAsTheRFCHasIt(t *testing.T) {
	f := &fake{}
	in := url.Values{"client_id": {ClientID}, "scope": {ReadOnly}, "device_name": {"lap\x1b[31mtop\u202e" + strings.Repeat("x", 99)}}
	w := send(f, "POST", DevicePath, formType, in.Encode())
	want := `{"device_code":"dev","expires_in":60,"interval":1,"user_code":"BCDF-GHJK","verification_uri":"https://api.example.com/console/device","verification_uri_complete":"https://api.example.com/console/device?code=BCDF-GHJK"}`
	if w.Body.String() != want || !f.dev.ReadOnly || f.dev.Address != "192.0.2.7" {
		t.Errorf("%s %+v", w.Body, f.dev)
	}
	if name := f.dev.Name; len(name) != maxName || strings.ContainsAny(name, "\x1b\u202e") || !strings.HasPrefix(name, "lap[31mtop") {
		t.Errorf("named %q", name)
	}
	token := url.Values{"client_id": {ClientID}, "grant_type": {GrantType}, "device_code": {"dev"}}.Encode()
	if w := send(f, "POST", TokenPath, formType, token); w.Body.String() != `{"access_token":"key","token_type":"Bearer"}` || w.Header().Get("Cache-Control") != "no-store" {
		t.Errorf("%s", w.Body)
	}
	f.err = errors.New("slow_down")
	if w := send(f, "POST", TokenPath, formType, token); w.Code != 400 || w.Body.String() != `{"error":"slow_down"}` {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}
