package rest

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"
	"github.com/danielgtaylor/huma/v2"

	"gantry/api/limit"
	"gantry/api/problem"
	"gantry/api/v2"
	"gantry/fleet"
)

// InsideService reaches into running pods.
type InsideService interface {
	// ExecPod starts a process in a running pod's container.
	ExecPod(ctx context.Context, who fleet.Principal, id fleet.PodID, req fleet.ExecRequest) (fleet.ExecSession, error)
	// ReadPodFiles returns a file or folder of a running pod's container as a tar stream.
	ReadPodFiles(ctx context.Context, who fleet.Principal, id fleet.PodID, path string) (io.ReadCloser, error)
	// WritePodFiles unpacks a tar stream below a folder of a running pod's container.
	WritePodFiles(ctx context.Context, who fleet.Principal, id fleet.PodID, path string, tar io.Reader) error
	PodLogs(ctx context.Context, who fleet.Principal, id fleet.PodID, q fleet.LogQuery, sink fleet.LogSink) error
}

const (
	maxSessions = 64      // of exec, per account
	maxMessage  = 1 << 20 // bytes of one message from a client
)

// pace holds the waits of what stays open; tests shorten them.
type pace struct {
	measure time.Duration // between measures of a pod
	again   time.Duration // until who follows a log or runs a program is asked for again
	first   time.Duration // for the first message of an exec session
	ping    time.Duration // between two pings of an exec session, or signs of life of a stream of events
	pong    time.Duration // for the answer to one
	stall   time.Duration // without progress of a transfer
}

func defaultPace() pace {
	return pace{measure: 5 * time.Second, again: 2 * time.Second, first: 10 * time.Second, ping: keepAlive, pong: 10 * time.Second, stall: 60 * time.Second}
}

func checkExec(in *v2.ExecRequest) []string {
	var out []string
	if in.Command[0] == "" {
		out = append(out, "$.command[0]: must not be empty")
	}
	for i, word := range in.Command {
		if strings.ContainsRune(word, 0) {
			out = append(out, fmt.Sprintf("$.command[%d]: must not contain NUL", i))
		}
	}
	return out
}

// execRules check what a client sends.
type execRules struct{ request, size *rule }

func (a *API) registerExec() {
	rt := route{
		method: http.MethodGet, path: "/v2/pods/{id}/exec", id: "execPod", tag: "Pods", summary: "Run a program in a pod",
		text: "Opens a WebSocket and runs a program in the container of a running pod. The client's first message, within 10 seconds, is text: " +
			"an ExecRequest as JSON. All others are binary, both ways: one byte for the channel, then data. From the client: 0 input, 4 a new size of the terminal (ExecSize as JSON), " +
			"5 the end of the input. From the server: 1 output, 2 error output, 3 the end, as JSON `{\"code\",\"error\"?}`, which is the last message before a normal " +
			"close; error is there when the program could not run or was lost, and code then means nothing. A message has at most 1 MiB. When the client " +
			"leaves, or its key or session ends, the program is killed.\n\n" +
			"400: the request asks for no WebSocket. 404: there is no such pod. 409: it does not run. 429: the account has more than 64 sessions open.",
		scope: insideScope, limit: limit.PerAccount, status: http.StatusSwitchingProtocols,
		params: []*huma.Param{podIDParam()}, errors: []int{http.StatusConflict},
	}
	op := a.declare(rt)
	var rules execRules
	messages := &huma.Schema{OneOf: make([]*huma.Schema, 2)}
	messages.OneOf[0], rules.request = a.messageRule(reflect.TypeFor[v2.ExecRequest]())
	messages.OneOf[1], rules.size = a.messageRule(reflect.TypeFor[v2.ExecSize]())
	op.Responses["101"].Description = "The WebSocket, and the messages in JSON that the client sends."
	op.Responses["101"].Content = map[string]*huma.MediaType{"application/json": {Schema: messages}}
	a.serve(op, rt, func(ctx context.Context, c *call) error { return a.execPod(ctx, c, rules) })
}

// execPod checks what can be refused with a problem, and then holds the session.
func (a *API) execPod(ctx context.Context, c *call, rules execRules) error {
	id, err := pathID[fleet.PodID](c, "pod")
	if err != nil {
		return err
	}
	if err := a.running(ctx, c.who, id); err != nil {
		return err
	}
	if !wantsSocket(c.r) {
		c.w.Header().Set("Sec-WebSocket-Version", "13")
		return malformed("the request must ask for a WebSocket")
	}
	if !a.sessions.take(c.who.Account) {
		return &fleet.Error{Code: fleet.CodeLimited, Msg: fmt.Sprintf("the account has more than %d exec sessions open", maxSessions)}
	}
	defer a.sessions.give(c.who.Account)
	// A browser cannot send the Authorization header that was checked, so the origin tells nothing.
	conn, err := websocket.Accept(c.w, c.r, &websocket.AcceptOptions{InsecureSkipVerify: true})
	if err != nil {
		return nil //nolint:nilerr // Accept has answered
	}
	conn.SetReadLimit(maxMessage)
	ctx, cancel := context.WithCancel(ctx)
	refused := make(chan error, 1)
	var watch sync.WaitGroup
	watch.Go(func() { refused <- a.untilRefused(ctx, c) })
	defer watch.Wait()
	defer cancel()
	err = newExecSocket(conn, rules, a.pace).hold(ctx, refused, func(ctx context.Context, req fleet.ExecRequest) (fleet.ExecSession, error) {
		return part[InsideService](a).ExecPod(ctx, c.who, id, req)
	})
	switch code := fleet.CodeOf(err); {
	case code == fleet.CodeInternal:
		a.log.Error("exec session met an internal error", "request", problem.RequestID(ctx), "pod", id, "err", err)
	case code == fleet.CodeUnavailable && !errors.Is(err, errClosing):
		a.log.Warn("exec session was lost", "request", problem.RequestID(ctx), "pod", id, "err", err)
	}
	return nil
}

// running fails unless the caller's pod runs now.
func (a *API) running(ctx context.Context, who fleet.Principal, id fleet.PodID) error {
	ctx, cancel := context.WithTimeout(ctx, a.callTimeout)
	defer cancel()
	view, err := part[PodService](a).Pod(ctx, who, id)
	switch {
	case err != nil:
		return err
	case view.Pod.Stopping():
		return fleet.NotAllowed("the pod is stopping")
	case view.Pod.Status != fleet.StatusRunning:
		return fleet.NotAllowed("the pod is %s, and must be RUNNING", view.Pod.Status)
	}
	return nil
}

// wantsSocket reports whether a request is the opening handshake of RFC 6455.
func wantsSocket(r *http.Request) bool {
	has := func(name, token string) bool {
		for _, v := range r.Header.Values(name) {
			for part := range strings.SplitSeq(v, ",") {
				if strings.EqualFold(strings.TrimSpace(part), token) {
					return true
				}
			}
		}
		return false
	}
	key, err := base64.StdEncoding.DecodeString(strings.TrimSpace(r.Header.Get("Sec-WebSocket-Key")))
	return r.Method == http.MethodGet && r.ProtoMajor == 1 && r.ProtoMinor >= 1 && err == nil && len(key) == 16 &&
		len(r.Header.Values("Sec-WebSocket-Key")) == 1 && r.Header.Get("Sec-WebSocket-Version") == "13" &&
		has("Connection", "Upgrade") && has("Upgrade", "websocket")
}
