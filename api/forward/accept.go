package forward

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/netip"

	"gantry/api/problem"
	"gantry/fleet"
)

// AcceptConfig is what Accept needs.
type AcceptConfig struct {
	Leads func() bool // whether this member leads
	// Check refuses a member that may not send requests any more, by its connection; nil: none.
	Check func(net.Conn) error
	Local http.Handler // serves the requests
	Log   *slog.Logger
}

type connKey struct{}

// ConnContext is for the ConnContext of the server whose handler Accept returned.
func ConnContext(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, conn)
}

// Accept returns the handler of the listener that only other schedulers reach. What they say of the client is
// believed: the request looks as if the client had sent it here. A member that does not lead refuses, and sends
// nothing on: a request is forwarded once.
func Accept(cfg AcceptConfig) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		client, err := netip.ParseAddrPort(r.Header.Get(HeaderClient))
		from := r.Header.Get(HeaderForwarded)
		r.Header.Del(HeaderForwarded)
		scheme := r.Header.Get(HeaderScheme)
		r.Header.Del(HeaderClient)
		r.Header.Del(HeaderScheme)
		conn, _ := r.Context().Value(connKey{}).(net.Conn)
		switch {
		case from == "" || err != nil:
			refuse(w, r, cfg.Log, &fleet.Error{Code: fleet.CodeMalformed, Msg: "only requests that a scheduler sends on are taken here"})
			return
		case cfg.Check != nil && cfg.Check(conn) != nil:
			refuse(w, r, cfg.Log, &fleet.Error{Code: fleet.CodeForbidden})
			return
		case !cfg.Leads():
			w.Header().Set(HeaderNothingDone, "1")
			refuse(w, r, cfg.Log, fleet.Unavailable("This scheduler does not lead: nothing was done. Please try again.", nil))
			return
		}
		r.RemoteAddr = client.String()
		cfg.Local.ServeHTTP(w, withScheme(r, scheme))
	})
}

func refuse(w http.ResponseWriter, r *http.Request, log *slog.Logger, err error) {
	id := problem.ChooseRequestID(r)
	w.Header().Set("X-Request-Id", id)
	problem.Answer(w, r.WithContext(problem.WithRequestID(r.Context(), id)), log, err)
}
