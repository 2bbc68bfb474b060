package gateway

import (
	"context"
	"io"
	"net/http"

	"gantry/api/auth"
	"gantry/api/rest"
	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/scheduler/inside"
	"gantry/scheduler/routes"
)

// insides serves logs, commands and files of pods that run on hosts that are connected here. It is what the API asks of a
// service for these routes; none of its others are served here. Whatever it would refuse is the leader's to refuse, while there is one.
type insides struct {
	rest.Service
	g *Gateway
}

// Authenticate implements rest.KeyChecker.
func (i insides) Authenticate(ctx context.Context, key fleet.Secret) (fleet.Principal, error) {
	return i.g.keys.who(ctx, key)
}

// KnownKey implements rest.KeyChecker. Nothing waits for it here.
func (insides) KnownKey(fleet.Secret) (fleet.Principal, bool) { return fleet.Principal{}, false }

// NoteAudit implements rest.AuditService: the line of a write was recorded before it began.
func (insides) NoteAudit(context.Context) error { return nil }

// Pod implements rest.PodService, as far as a gateway knows.
func (i insides) Pod(_ context.Context, who fleet.Principal, id fleet.PodID) (out fleet.PodView, err error) {
	err = i.g.link.table.View(func(v routes.View) error {
		p, ok := v.Pod(id)
		if !ok || p.Account != who.Account || p.Owner.Kind != "" {
			return fleet.NotFound("pod")
		}
		out.Pod = &p
		return nil
	})
	return out, err
}

func (i insides) running(ctx context.Context, who fleet.Principal, id fleet.PodID) (fleet.HostID, error) {
	view, err := i.Pod(ctx, who, id)
	switch {
	case err != nil:
		return "", err
	case view.Pod.Status != fleet.StatusRunning || view.Pod.Goal != fleet.GoalRun:
		return "", fleet.NotAllowed("the pod does not run")
	}
	return view.Pod.Host, nil
}

// open is an inside.Opener.
func (i insides) open(ctx context.Context, host fleet.HostID, ask *agentrpc.OpenTunnel) (*inside.Stream, error) {
	d := i.g.conns.Newest(host)
	if d == nil {
		return nil, fleet.Unavailable("the pod's host cannot be reached", nil)
	}
	return inside.Over(ctx, d, ask)
}

// ExecPod implements rest.InsideService.
func (i insides) ExecPod(ctx context.Context, who fleet.Principal, id fleet.PodID, req fleet.ExecRequest) (fleet.ExecSession, error) {
	host, err := i.running(ctx, who, id)
	if err != nil {
		return nil, err
	}
	return inside.Opener(i.open).Exec(ctx, host, id, req)
}

// ReadPodFiles implements rest.InsideService.
func (i insides) ReadPodFiles(ctx context.Context, who fleet.Principal, id fleet.PodID, path string) (io.ReadCloser, error) {
	host, err := i.running(ctx, who, id)
	if err != nil {
		return nil, err
	}
	return inside.Opener(i.open).ReadFiles(ctx, host, id, path)
}

// WritePodFiles implements rest.InsideService. Nothing is written before the leader has the line of the audit log.
func (i insides) WritePodFiles(ctx context.Context, who fleet.Principal, id fleet.PodID, path string, tar io.Reader) error {
	host, err := i.running(ctx, who, id)
	if err != nil {
		return err
	}
	key, _ := ctx.Value(keyOfCall{}).(fleet.Secret)
	note := &agentrpc.FilesWrite{Key: key.Reveal(), PodId: string(id)}
	if audit := fleet.AuditOf(ctx); audit != nil {
		note.Address = audit.Line.Address
	}
	if err := i.g.noteWrite(ctx, note); err != nil {
		return err
	}
	return inside.Opener(i.open).WriteFiles(ctx, host, id, path, tar)
}

// keyOfCall is where the context of a request has its key, for the scheduler that notes what it changes.
type keyOfCall struct{}

// withKey gives requests their key.
func withKey(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if key, err := auth.Bearer(r); err == nil {
			r = r.WithContext(context.WithValue(r.Context(), keyOfCall{}, key))
		}
		next.ServeHTTP(w, r)
	})
}

// PodLogs implements rest.InsideService.
func (i insides) PodLogs(ctx context.Context, who fleet.Principal, id fleet.PodID, q fleet.LogQuery, sink fleet.LogSink) error {
	host, err := i.running(ctx, who, id)
	if err != nil {
		return err
	}
	return inside.Opener(i.open).Logs(ctx, host, id, q, sink)
}

// here reports whether a request is one about the inside of a pod that is served here: one with a key in its header that will do.
func (i insides) here(r *http.Request) bool {
	pod, scope, flows := rest.Flow(r)
	if !flows || r.Method != http.MethodGet && i.g.link.Leader() == "" {
		return false
	}
	key, err := auth.Bearer(r)
	if err != nil {
		return false
	}
	who, err := i.g.keys.who(r.Context(), key)
	if err != nil || auth.Require(who, scope) != nil {
		return false
	}
	host, err := i.running(r.Context(), who, pod)
	return err == nil && i.g.conns.Connected(host)
}
