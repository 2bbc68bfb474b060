package plane_test

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"gantry/api/proxy"
	"gantry/api/rest"
	"gantry/fleet"
	"gantry/test/plane"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A Plane stands in wherever the scheduler's service does.
var (
	_ rest.Service  = (*plane.Plane)(nil)
	_ proxy.Targets = (*plane.Plane)(nil)
	_ fleet.Dialer  = (*plane.Plane)(nil)
)

func create(t *testing.T, p *plane.Plane) fleet.PodView {
	t.Helper()
	v, err := p.CreatePod(t.Context(), p.Who(plane.User), fleet.PodRequest{
		Name: "web", Image: "busybox", GPU: &fleet.GPURequest{Type: plane.SimGPU, Count: 2}, Ports: []fleet.Port{{Number: 22, Protocol: "tcp"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestKeys(t *testing.T) {
	p := plane.New(t)
	for key, account := range map[string]fleet.AccountID{
		plane.User: plane.Research, plane.Reader: plane.Research, plane.Other: plane.Rival, plane.Operator: plane.Operators, plane.Expired: "", "nobody": "",
	} {
		who, err := p.Authenticate(t.Context(), plane.KeyText(key))
		if who.Account != account || (account == "") != (fleet.CodeOf(err) == fleet.CodeUnauthorized) {
			t.Errorf("%s: %+v, %v", key, who, err)
		}
	}
	p.Restrict(plane.User, map[fleet.Group]fleet.Access{fleet.GroupPods: fleet.AccessRead})
	if who := p.Who(plane.User); who.May(fleet.GroupPods, fleet.AccessWrite) || !who.May(fleet.GroupPods, fleet.AccessRead) {
		t.Errorf("%+v", who)
	}
	p.SetQuotas(plane.User, fleet.Quotas{Minute: 7})
	if q := p.Who(plane.Reader).Quotas; q == nil || q.Minute != 7 {
		t.Errorf("%+v", q)
	}
}

func TestTimeStandsStill(t *testing.T) {
	p := plane.New(t)
	if v := create(t, p); !v.Pod.CreatedAt.Equal(plane.Start()) {
		t.Error(v.Pod.CreatedAt)
	}
	p.Advance(time.Hour)
	if v := create(t, p); !v.Pod.CreatedAt.Equal(plane.Start().Add(time.Hour)) || !p.Now().Equal(v.Pod.CreatedAt) {
		t.Error(v.Pod.CreatedAt)
	}
}

func TestNamesAreTheSameInEveryRun(t *testing.T) {
	p := plane.New(t)
	a, b := create(t, p).Pod, create(t, p).Pod
	text := string(a.ID) + " " + string(b.ID) + ` {"JUPYTER_PASSWORD":"abcdefghijklmnopqrstuvwx","apiKey":"` + plane.KeyText("x").Reveal() + `"} key00000000004`
	want := `<pod-1> <pod-2> {"JUPYTER_PASSWORD":"<password>","apiKey":"<key-text>"} key00000000004`
	if got := p.Named(text); got != want {
		t.Error(got)
	}
	if got := p.Meant("/v2/pods/<pod-2>/<pod-9>"); got != "/v2/pods/"+string(b.ID)+"/<pod-9>" {
		t.Error(got)
	}
}

func TestDownMeansUnavailable(t *testing.T) {
	p := plane.New(t)
	p.SetDown(true)
	if _, err := p.Hosts(t.Context()); fleet.CodeOf(err) != fleet.CodeUnavailable {
		t.Error(err)
	}
	p.SetDown(false)
	if hosts, err := p.Hosts(t.Context()); err != nil || len(hosts) != 2 {
		t.Error(len(hosts), err)
	}
	p.SetBroke(plane.User, true)
	if _, err := p.CreatePod(t.Context(), p.Who(plane.User), fleet.PodRequest{Name: "a", Image: "b", GPU: &fleet.GPURequest{Type: plane.SimGPU, Count: 1}}); fleet.CodeOf(err) != fleet.CodeNoCredit {
		t.Error(err)
	}
}

func TestHostIsPlayed(t *testing.T) {
	p := plane.New(t)
	id, who := create(t, p).Pod.ID, p.Who(plane.User)
	if err := p.Report(id, fleet.ActionStop); fleet.CodeOf(err) != fleet.CodeNotAllowed {
		t.Error("a host reports an action:", err)
	}
	if err := p.Report(id, fleet.EventRunning); err != nil {
		t.Fatal(err)
	}
	if err := p.Report(id, fleet.EventStarting); fleet.CodeOf(err) != fleet.CodeNotAllowed {
		t.Error(err)
	}
	p.SetLive(id, fleet.Live{CPUPercent: 5})
	v, err := p.Pod(t.Context(), who, id)
	if err != nil || v.Pod.Status != fleet.StatusRunning || v.Live == nil || v.Live.CPUPercent != 5 || v.PublicIP != plane.PublicIP {
		t.Errorf("%+v %v", v, err)
	}
	p.Lock(id, true)
	if _, err := p.ActPod(t.Context(), who, id, fleet.ActionStop); fleet.CodeOf(err) != fleet.CodeNotAllowed {
		t.Error(err)
	}
	p.SetReachable(plane.Host, false)
	if v, err := p.Pod(t.Context(), who, id); err != nil || !v.Unreachable || v.Live != nil {
		t.Errorf("%+v %v", v, err)
	}
}

// TestWhatIsTriedAgainIsTheReason shows the owner of a pod that does not come up why it waits.
func TestWhatIsTriedAgainIsTheReason(t *testing.T) {
	p := plane.New(t)
	id, who := create(t, p).Pod.ID, p.Who(plane.User)
	for activity, want := range map[string]string{
		"the registry cannot be reached" + fleet.TryingAgain: "the registry cannot be reached, trying again", "pulling image": "",
	} {
		p.SetLive(id, fleet.Live{Activity: activity})
		if v, err := p.Pod(t.Context(), who, id); err != nil || v.Reason != want {
			t.Errorf("%q: reason %q, want %q: %v", activity, v.Reason, want, err)
		}
	}
}

func TestLogIsPlayed(t *testing.T) {
	p := plane.New(t)
	id, who := create(t, p).Pod.ID, p.Who(plane.User)
	for _, line := range []string{"one", "two", "three"} {
		p.Log(id, "container", line)
	}
	read := func(q fleet.LogQuery) (string, error) {
		var out []string
		err := p.PodLogs(t.Context(), who, id, q, func(l fleet.LogLine) error { out = append(out, l.Line); return nil })
		return strings.Join(out, " "), err
	}
	if text, err := read(fleet.LogQuery{Tail: 2}); text != "two three" || err != nil {
		t.Error(text, err)
	}
	p.BreakLog(id)
	if text, err := read(fleet.LogQuery{Tail: 9}); text != "one two three" || fleet.CodeOf(err) != fleet.CodeUnavailable {
		t.Error(text, err)
	}
}

func TestProgramsAndFilesArePlayed(t *testing.T) {
	p := plane.New(t)
	id, who := create(t, p).Pod.ID, p.Who(plane.User)
	if err := p.Report(id, fleet.EventRunning); err != nil {
		t.Fatal(err)
	}
	s, err := p.ExecPod(t.Context(), who, id, fleet.ExecRequest{Command: []string{"cat"}, Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range []fleet.ExecFrame{{Channel: fleet.ExecStdin, Data: []byte("x")}, {Channel: fleet.ExecStdinEnd}} {
		if err := s.Send(f); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []fleet.ExecFrame{{Channel: fleet.ExecStdout, Data: []byte("x")}, {Channel: fleet.ExecExit, Data: []byte(`{"code":0}`)}} {
		if f, err := s.Receive(); err != nil || f.Channel != want.Channel || !bytes.Equal(f.Data, want.Data) {
			t.Errorf("%+v %v", f, err)
		}
	}
	if _, err := s.Receive(); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
	if p.Sessions() != 1 || s.Close() != nil || s.Close() != nil || p.Sessions() != 0 {
		t.Error("a closed session is still open")
	}

	p.PutFile(id, "/a/b.txt", "text")
	archive, err := p.ReadPodFiles(t.Context(), who, id, "/a")
	if err != nil {
		t.Fatal(err)
	}
	if err := p.WritePodFiles(t.Context(), who, id, "/copy", archive); err != nil {
		t.Fatal(err)
	}
	if text, ok := p.File(id, "/copy/a/b.txt"); !ok || text != "text" {
		t.Errorf("%q", text)
	}
	if err := archive.Close(); err != nil {
		t.Error(err)
	}
	if _, err := p.ReadPodFiles(t.Context(), who, id, "/none"); fleet.CodeOf(err) != fleet.CodeNotFound {
		t.Error(err)
	}
}
