package scheduler

import (
	"encoding/base64"
	"encoding/json"
	"testing"
	"time"

	"gantry/fleet"
	"gantry/scheduler/people"
	"gantry/scheduler/state"
)

const adas = "correct horse battery"

// withAda makes a person who chose a password, an owner of acme and a viewer of another account.
func withAda(t *testing.T) (*world, fleet.PersonID) {
	t.Helper()
	w := newWorld(t)
	w.must(state.PutAccount{Account: fleet.Account{ID: "zeta", Name: "zeta", CreatedAt: begin()}})
	p, once, err := w.svc.CreatePerson(t.Context(), "Ada@Example.com", []fleet.Membership{
		{Account: "zeta", Role: fleet.RoleViewer}, {Account: acme, Role: fleet.RoleOwner},
	}, true)
	if err != nil || p.Login != "ada@example.com" {
		t.Fatalf("%+v, %v", p, err)
	}
	_, _, err = w.svc.SignIn(t.Context(), fleet.SignIn{Login: p.Login, Password: once, Address: "a"})
	refused(t, err, fleet.CodeNotAllowed, "choose one of your own")
	for _, bad := range []fleet.Secret{"short", once, "ada@example.com"} {
		_, _, err = w.svc.SignIn(t.Context(), fleet.SignIn{Login: p.Login, Password: once, NewPassword: bad, Address: "a"})
		refused(t, err, fleet.CodeInvalid, "$.newPassword")
	}
	if _, _, err = w.svc.SignIn(t.Context(), fleet.SignIn{Login: p.Login, Password: once, NewPassword: adas, Address: "a"}); err != nil {
		t.Fatal(err)
	}
	_, _, err = w.svc.SignIn(t.Context(), fleet.SignIn{Login: p.Login, Password: once, Address: "b"})
	refused(t, err, fleet.CodeUnauthorized, errSignIn.Msg)
	return w, p.ID
}

func (w *world) signIn(t *testing.T, in fleet.SignIn) (fleet.Secret, fleet.Principal) {
	t.Helper()
	in.Login = "ada@example.com"
	if in.Password == "" {
		in.Password = adas
	}
	token, _, err := w.svc.SignIn(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	who, err := w.svc.Authenticate(t.Context(), token)
	if err != nil {
		t.Fatal(err)
	}
	return token, who
}

func TestASessionActsWithTheRoleOfItsPersonAtOnce(t *testing.T) {
	w, id := withAda(t)
	token, who := w.signIn(t, fleet.SignIn{})
	if who.Account != acme || who.Person != id || !who.May(fleet.GroupAccount, fleet.AccessWrite) || who.Key != "" || who.May(fleet.GroupAdmin, fleet.AccessRead) {
		t.Fatalf("%+v", who)
	}
	as := func(account fleet.AccountID, group fleet.Group, access fleet.Access, may bool) {
		t.Helper()
		who, err := w.svc.Authenticate(t.Context(), token)
		if err != nil || who.Account != account || who.May(group, access) != may {
			t.Errorf("%+v, %v", who, err)
		}
	}
	if err := w.svc.ChooseAccount(t.Context(), who, "zeta"); err != nil {
		t.Fatal(err)
	}
	as("zeta", fleet.GroupPods, fleet.AccessRead, true)
	as("zeta", fleet.GroupPods, fleet.AccessWrite, false)
	refused(t, w.svc.ChooseAccount(t.Context(), who, "other"), fleet.CodeNotFound, "account")
	roles := func(all ...fleet.Membership) {
		t.Helper()
		if _, err := w.svc.UpdatePerson(t.Context(), id, fleet.PersonUpdate{Memberships: &all}); err != nil {
			t.Fatal(err)
		}
	}
	roles(fleet.Membership{Account: acme, Role: fleet.RoleDeveloper}, fleet.Membership{Account: "zeta", Role: fleet.RoleBilling})
	as("zeta", fleet.GroupPods, fleet.AccessRead, false)
	roles(fleet.Membership{Account: acme, Role: fleet.RoleDeveloper})
	_, err := w.svc.Authenticate(t.Context(), token)
	refused(t, err, fleet.CodeUnauthorized, "") // what is meant for zeta is not done in acme
	token, _ = w.signIn(t, fleet.SignIn{})
	as(acme, fleet.GroupPods, fleet.AccessWrite, true)
	as(acme, fleet.GroupAccount, fleet.AccessWrite, false)
	roles()
	_, err = w.svc.Authenticate(t.Context(), token)
	refused(t, err, fleet.CodeUnauthorized, "")
}

func TestASessionBeginsInAnAccountThatIsNotSuspended(t *testing.T) {
	w, _ := withAda(t)
	_, who := w.signIn(t, fleet.SignIn{})
	suspend := func(id fleet.AccountID) { w.must(state.SuspendAccount{Account: id, Reason: "unpaid", At: w.clock()}) }
	suspend(acme)
	token, next := w.signIn(t, fleet.SignIn{})
	if who.Account != acme || next.Account != "zeta" {
		t.Errorf("%s, then %s", who.Account, next.Account)
	}
	suspend("zeta")
	_, err := w.svc.Authenticate(t.Context(), token)
	refused(t, err, fleet.CodeSuspended, "suspended")
	_, _, err = w.svc.SignIn(t.Context(), fleet.SignIn{Login: "ada@example.com", Password: adas, Address: "a"})
	refused(t, err, fleet.CodeSuspended, "suspended")
}

// TestWhoTriesElsewhereDoesNotLockAPersonOut tries a login from many addresses, and from one of its person's own.
func TestWhoTriesElsewhereDoesNotLockAPersonOut(t *testing.T) {
	w, _ := withAda(t) // who signed in from "a"
	try := func(address string, code fleet.Code) {
		t.Helper()
		_, _, err := w.svc.SignIn(t.Context(), fleet.SignIn{Login: "ada@example.com", Password: "wrong", Address: address})
		refused(t, err, code, "")
	}
	for i := range personTries - 1 { // one failed before
		try(string(rune('k'+i)), fleet.CodeUnauthorized)
	}
	try("z", fleet.CodeLimited)
	_, who := w.signIn(t, fleet.SignIn{Address: "a"})
	if err := w.svc.ChangePassword(t.Context(), who, adas, "another password"); err != nil {
		t.Error(err)
	}
	w.signIn(t, fleet.SignIn{Address: "a", Password: "another password"})
	for range personTries {
		try("a", fleet.CodeUnauthorized)
	}
	try("a", fleet.CodeLimited)
	for range personTries {
		refused(t, w.svc.ChangePassword(t.Context(), who, "wrong", "yet another one"), fleet.CodeForbidden, "wrong")
	}
	refused(t, w.svc.ChangePassword(t.Context(), who, "another password", "yet another one"), fleet.CodeLimited, "")
}

func TestHowSessionsEnd(t *testing.T) {
	for name, end := range map[string]func(*testing.T, *world, fleet.PersonID, fleet.Principal) error{
		"sign out": func(t *testing.T, w *world, _ fleet.PersonID, who fleet.Principal) error {
			return w.svc.SignOut(t.Context(), who)
		},
		"everywhere": func(t *testing.T, w *world, _ fleet.PersonID, who fleet.Principal) error {
			return w.svc.EndOwnSessions(t.Context(), who)
		},
		"the operator": func(t *testing.T, w *world, id fleet.PersonID, _ fleet.Principal) error {
			_, err := w.svc.ResetPerson(t.Context(), id, fleet.PersonReset{})
			return err
		},
		"disabled": func(t *testing.T, w *world, id fleet.PersonID, _ fleet.Principal) error {
			_, err := w.svc.UpdatePerson(t.Context(), id, fleet.PersonUpdate{Disabled: new(true)})
			return err
		},
		"deleted": func(t *testing.T, w *world, id fleet.PersonID, _ fleet.Principal) error {
			return w.svc.DeletePerson(t.Context(), id)
		},
		"time": func(_ *testing.T, w *world, _ fleet.PersonID, _ fleet.Principal) error {
			w.pass(sessionLife)
			return nil
		},
		"from a second": func(t *testing.T, w *world, _ fleet.PersonID, _ fleet.Principal) error {
			_, second := w.signIn(t, fleet.SignIn{})
			err := w.svc.ChangePassword(t.Context(), second, adas, "another password")
			if _, kept := w.signIn(t, fleet.SignIn{Password: "another password"}); kept.Person == "" {
				t.Error("the new password is not good")
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, id := withAda(t)
			token, who := w.signIn(t, fleet.SignIn{})
			if err := end(t, w, id, who); err != nil {
				t.Fatal(err)
			}
			_, err := w.svc.Authenticate(t.Context(), token)
			refused(t, err, fleet.CodeUnauthorized, "")
		})
	}
}

// TestWhoIsUnknownIsAnsweredAlike compares the answers about a person with those about nobody, until both are locked out.
func TestWhoIsUnknownIsAnsweredAlike(t *testing.T) {
	w, _ := withAda(t)
	try := func(login, address string) string {
		_, _, err := w.svc.SignIn(t.Context(), fleet.SignIn{Login: login, Password: "wrong", Address: address})
		return string(fleet.CodeOf(err)) + err.Error()
	}
	w.signIn(t, fleet.SignIn{}) // forgets what failed before
	for range personTries + 2 {
		if a, b := try("ada@example.com", "x"), try("nobody@example.com", "y"); a != b {
			t.Errorf("%s, but %s", a, b)
		}
	}
	if got := try("ada@example.com", "z"); got != string(fleet.CodeLimited)+"too many attempts failed" {
		t.Errorf("a person who was tried is answered %s", got)
	}
	_, _, err := w.svc.SignIn(t.Context(), fleet.SignIn{Login: "ada@example.com", Password: adas, Address: "z"})
	refused(t, err, fleet.CodeLimited, "")
	w.pass(time.Hour)
	w.signIn(t, fleet.SignIn{Address: "z"})
	for i := range addressTries {
		try(string(rune('a'+i)), "one")
	}
	_, _, err = w.svc.SignIn(t.Context(), fleet.SignIn{Login: "ada@example.com", Password: adas, Address: "one"})
	refused(t, err, fleet.CodeLimited, "")
	w.signIn(t, fleet.SignIn{Address: "two"})
}

func TestCodesAreNeededAndGoodOnce(t *testing.T) {
	w, id := withAda(t)
	_, who := w.signIn(t, fleet.SignIn{})
	const secret = "JBSWY3DPEHPK3PXPJBSWY3DPEHPK3PXP"
	plain, _ := people.ReadTOTP(secret)
	code := func() string { return people.Code(plain, people.StepAt(w.clock())) }
	refused(t, w.svc.SetTOTP(t.Context(), who, "wrong", secret, code()), fleet.CodeForbidden, "")
	refused(t, w.svc.SetTOTP(t.Context(), who, adas, "JBSW", code()), fleet.CodeInvalid, "$.secret")
	refused(t, w.svc.SetTOTP(t.Context(), who, adas, secret, "000000"), fleet.CodeForbidden, "")
	if err := w.svc.SetTOTP(t.Context(), who, adas, secret, code()); err != nil {
		t.Fatal(err)
	}
	refused(t, w.svc.SetTOTP(t.Context(), who, adas, secret, code()), fleet.CodeNotAllowed, "")
	try := func(code string) error {
		_, _, err := w.svc.SignIn(t.Context(), fleet.SignIn{Login: "ada@example.com", Password: adas, Code: code, Address: "a"})
		return err
	}
	refused(t, try(code()), fleet.CodeUnauthorized, "") // that of the enrolment
	w.pass(time.Minute)
	refused(t, try(""), fleet.CodeUnauthorized, "")
	if err := try(code()); err != nil {
		t.Fatal(err)
	}
	refused(t, try(code()), fleet.CodeUnauthorized, "")
	w.pass(time.Minute)
	refused(t, w.svc.SetTOTP(t.Context(), who, adas, "", "000000"), fleet.CodeForbidden, "")
	if err := w.svc.SetTOTP(t.Context(), who, adas, "", code()); err != nil {
		t.Fatal(err)
	}
	if err := try(""); err != nil {
		t.Error(err)
	}
	if p, err := w.svc.Person(t.Context(), id); err != nil || len(p.TOTP) > 0 {
		t.Errorf("%+v, %v", p, err)
	}
}

func TestAProviderIsBoundToOnePerson(t *testing.T) {
	w, id := withAda(t)
	say := func(a fleet.Assertion, purpose string) error {
		text, err := json.Marshal(a)
		if err != nil {
			t.Fatal(err)
		}
		sealed, err := w.svc.Sealer.Seal(purpose, text)
		if err != nil {
			t.Fatal(err)
		}
		_, _, err = w.svc.SignIn(t.Context(), fleet.SignIn{Assertion: fleet.Secret(base64.RawURLEncoding.EncodeToString(sealed)), Address: "a"})
		return err
	}
	until, p := w.clock().Add(time.Minute), fleet.AssertionPurpose
	refused(t, say(fleet.Assertion{Subject: "iss 1", Email: "ada@example.com", Until: until}, "console session"), fleet.CodeUnauthorized, "")
	refused(t, say(fleet.Assertion{Subject: "iss 1", Email: "ada@example.com", Until: w.clock()}, p), fleet.CodeUnauthorized, "")
	refused(t, say(fleet.Assertion{Subject: "iss 1", Until: until}, p), fleet.CodeForbidden, "") // not verified
	refused(t, say(fleet.Assertion{Subject: "iss 1", Email: "bob@example.com", Until: until}, p), fleet.CodeForbidden, "")
	if err := say(fleet.Assertion{Subject: "iss 1", Email: "Ada@example.com", Until: until}, p); err != nil {
		t.Fatal(err)
	}
	refused(t, say(fleet.Assertion{Subject: "iss 2", Email: "ada@example.com", Until: until}, p), fleet.CodeForbidden, "") // bound to another
	if err := say(fleet.Assertion{Subject: "iss 1", Until: until}, p); err != nil {
		t.Error(err)
	}
	if _, err := w.svc.UpdatePerson(t.Context(), id, fleet.PersonUpdate{Disabled: new(true)}); err != nil {
		t.Fatal(err)
	}
	refused(t, say(fleet.Assertion{Subject: "iss 1", Until: until}, p), fleet.CodeForbidden, "")
}

func TestACommandLinesKeyIsWorthWhatItsPersonIs(t *testing.T) {
	w, id := withAda(t)
	_, who := w.signIn(t, fleet.SignIn{})
	codes, err := w.svc.BeginDevice(t.Context(), fleet.DeviceRequest{Name: "laptop", Address: "a"})
	if err != nil {
		t.Fatal(err)
	}
	refused(t, w.svc.DecideDevice(t.Context(), fleet.Principal{Account: acme, Key: "k"}, codes.User, true, 0), fleet.CodeForbidden, "")
	refused(t, w.svc.DecideDevice(t.Context(), who, codes.User, true, 367), fleet.CodeInvalid, "$.expiresInDays")
	if err := w.svc.DecideDevice(t.Context(), who, codes.User, true, 30); err != nil {
		t.Fatal(err)
	}
	text, err := w.svc.TakeDevice(t.Context(), codes.Device)
	if err != nil {
		t.Fatal(err)
	}
	use := func() fleet.Principal {
		t.Helper()
		got, err := w.svc.Authenticate(t.Context(), text)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	got := use()
	key, err := w.svc.Key(t.Context(), got, got.Key)
	if err != nil || key.Name != "login laptop" || !key.ExpiresAt.Equal(w.clock().Add(30*24*time.Hour)) || got.Person != id || !got.May(fleet.GroupAccount, fleet.AccessWrite) {
		t.Errorf("%+v, %+v, %v", key, got, err)
	}
	change := func(all []fleet.Membership) {
		t.Helper()
		if _, err := w.svc.UpdatePerson(t.Context(), id, fleet.PersonUpdate{Memberships: &all}); err != nil {
			t.Fatal(err)
		}
	}
	change([]fleet.Membership{{Account: acme, Role: fleet.RoleViewer}})
	if got := use(); got.May(fleet.GroupPods, fleet.AccessWrite) || !got.May(fleet.GroupPods, fleet.AccessRead) || len(got.Invoke) > 0 {
		t.Errorf("a viewer's key may %+v", got)
	}
	change([]fleet.Membership{{Account: "zeta", Role: fleet.RoleOwner}})
	_, err = w.svc.Authenticate(t.Context(), text)
	refused(t, err, fleet.CodeUnauthorized, "")
	change([]fleet.Membership{{Account: acme, Role: fleet.RoleBilling}})
	if err := w.svc.SignOut(t.Context(), use()); err != nil { // whatever it may do
		t.Fatal(err)
	}
	_, err = w.svc.Authenticate(t.Context(), text)
	refused(t, err, fleet.CodeUnauthorized, "")
}

func TestCodesOfCommandLinesCannotBeGuessed(t *testing.T) {
	w, _ := withAda(t)
	_, who := w.signIn(t, fleet.SignIn{})
	for range codeTries {
		_, err := w.svc.Device(t.Context(), who, "BBBB-BBBB")
		refused(t, err, fleet.CodeNotFound, "")
	}
	_, err := w.svc.Device(t.Context(), who, "BBBB-BBBB")
	refused(t, err, fleet.CodeLimited, "")
	refused(t, w.svc.DecideDevice(t.Context(), who, "BBBB-BBBB", true, 0), fleet.CodeLimited, "")
}
