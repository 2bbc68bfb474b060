package rest

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"gantry/api/auth"
	"gantry/api/limit"
	"gantry/api/v2"
	"gantry/fleet"
)

// AuditService keeps the audit log.
type AuditService interface {
	Audit(ctx context.Context, q fleet.AuditQuery) (fleet.AuditPage, error)
	// NoteAudit records the line of ctx, unless it is on record.
	NoteAudit(ctx context.Context) error
}

const (
	auditLimit     = 100  // lines of an answer, unless limit says otherwise
	auditPiece     = 1000 // lines of an export that are read at a time
	auditMediaType = "application/x-ndjson"

	textAudit = "Lists who changed what, when, and from where: a line per request of any API that changed something, newest first. Refused requests " +
		"leave none. A line is written with the change. With format=jsonl, or Accept: application/x-ndjson, the answer is a line of JSON each; without limit, all."
)

// audited returns ctx with the line of an operation that changes something, unless it has a whole one. One that another face began is
// completed: what it calls in a request comes one after the other.
func audited(ctx context.Context, c *call, rt *route) context.Context {
	if c.who.Account == "" || rt.method == http.MethodGet || c.args.flag("dryRun", false) {
		return ctx
	}
	var line fleet.AuditLine
	had := fleet.AuditOf(ctx)
	if had != nil {
		line = had.Line
	}
	if line.Account != "" {
		return ctx
	}
	face := "v2"
	switch {
	case strings.HasPrefix(rt.path, "/admin/"):
		face = "admin"
	case strings.HasPrefix(rt.path, "/v1/"):
		face = "v1"
	}
	line.Account, line.Key, line.Object, line.Operator = c.who.Account, string(c.who.Key), c.args.text("id"), rt.scope.Group == fleet.GroupAdmin
	line.Person = c.who.Person
	switch {
	case c.who.Pod != "":
		line.Key, line.KeyName = string(c.who.Pod), "pod"
	case c.who.Session != "":
		line.Key = string(c.who.Session)
	}
	line.Face, line.Operation, line.Status = cmp.Or(line.Face, face), cmp.Or(line.Operation, rt.id), cmp.Or(line.Status, rt.status)
	if client, err := netip.ParseAddrPort(c.r.RemoteAddr); err == nil {
		line.Address = client.Addr().Unmap().String()
	}
	if had != nil {
		had.Line = line
		return ctx
	}
	return fleet.WithAudit(ctx, line)
}

// noteChange records the line of a request that changed something without a command. Its answer is what it did all the same.
func (a *engine) noteChange(ctx context.Context) {
	if err := a.svc.NoteAudit(ctx); err != nil {
		line := fleet.AuditOf(ctx).Line
		a.log.Warn("a change has no line in the audit log", "operation", line.Operation, "account", line.Account, "err", err)
	}
}

func (a *API) registerAudit() {
	text := func(name, what string) *huma.Param {
		longest := 256
		return queryParam(name, what, huma.Schema{Type: huma.TypeString, MaxLength: &longest})
	}
	when := func(name, what string) *huma.Param {
		return queryParam(name, what, huma.Schema{Type: huma.TypeString, Format: "date-time"})
	}
	params := append([]*huma.Param{
		when("from", "Only lines of then or later."), when("to", "Only lines of before then."), text("operation", "Only lines of this operation."),
		text("object", "Only lines about the object with this id."), wordParam("format", "json, or a JSON object per line.", "json", "jsonl"),
	}, pageParams()...)
	a.registerAuditLog(route{
		path: "/v2/audit", id: "getAudit", tag: "Account", summary: "List who changed what in the account", text: textAudit,
		scope: auth.Read(fleet.GroupAccount), params: params,
	})
	a.registerAuditLog(route{
		path: "/admin/v1/audit", id: "getOperatorAudit", tag: "Operators", summary: "List who changed what", text: textAudit,
		scope: auth.Read(fleet.GroupAdmin), params: append([]*huma.Param{text("accountId", "Only lines of this account's keys.")}, params...),
	})
}

func (a *API) registerAuditLog(rt route) {
	rt.method, rt.limit, rt.status = http.MethodGet, limit.PerAccount, http.StatusOK
	rt.out = v2.AuditLog{Lines: []v2.AuditLine{{
		At: exampleTime(0), AccountID: "research", KeyID: "m2c9v4x7b1n5q8", KeyName: "ci", Operation: "createPod", ObjectID: "p7x1c9v2b6n8e4",
		Face: "v2", Address: "192.0.2.1", Status: http.StatusCreated,
	}}}
	op := a.declare(rt)
	op.Extensions["x-gantry"] = true
	a.describeAnswer(op, rt, reflect.TypeFor[v2.AuditLog]())
	op.Responses["200"].Content[auditMediaType] = &huma.MediaType{Schema: &huma.Schema{Type: huma.TypeString}}
	a.serve(op, rt, func(ctx context.Context, c *call) error {
		q := fleet.AuditQuery{
			Account: c.who.Account, From: c.args.time("from"), To: c.args.time("to"), Operation: c.args.text("operation"), Object: c.args.text("object"),
		}
		if rt.scope.Group == fleet.GroupAdmin {
			q.Account = fleet.AccountID(c.args.text("accountId"))
		}
		if c.args.has("cursor") {
			var err error
			if q.Before, err = strconv.ParseUint(c.args.text("cursor"), 10, 64); err != nil || q.Before == 0 {
				return malformed("the cursor is none that a list gave")
			}
		}
		if format := c.args.text("format"); format == "jsonl" || format == "" && c.r.Header.Get("Accept") == auditMediaType {
			return a.exportAudit(ctx, c, q)
		}
		q.Limit = c.args.number("limit", auditLimit)
		page, err := a.auditPage(ctx, q)
		if err != nil {
			return err
		}
		out := v2.AuditLog{Lines: make([]v2.AuditLine, len(page.Lines))}
		for i := range page.Lines {
			out.Lines[i] = auditRecord(&page.Lines[i])
		}
		if page.Next != 0 {
			out.Next = strconv.FormatUint(page.Next, 10)
		}
		return writeJSON(c.w, http.StatusOK, out)
	})
}

func (a *API) auditPage(ctx context.Context, q fleet.AuditQuery) (fleet.AuditPage, error) {
	ctx, cancel := context.WithTimeout(ctx, a.callTimeout)
	defer cancel()
	return part[AuditService](a).Audit(ctx, q)
}

// exportAudit writes lines of JSON, all that are asked for. What fails later than at the beginning cuts the answer off.
func (a *API) exportAudit(ctx context.Context, c *call, q fleet.AuditQuery) error {
	left, rc := c.args.number("limit", -1), http.NewResponseController(c.w)
	for begun := false; ; begun = true {
		if q.Limit = auditPiece; left >= 0 {
			q.Limit = min(left, auditPiece)
		}
		page, err := a.auditPage(ctx, q)
		if err == nil && !begun {
			h := c.w.Header()
			h.Set("Content-Type", auditMediaType)
			h.Set("Cache-Control", "no-store")
			h.Set("X-Content-Type-Options", "nosniff")
			c.w.WriteHeader(http.StatusOK)
		} else if err != nil && begun {
			a.log.Warn("an export of the audit log broke off", "err", err)
			panic(http.ErrAbortHandler)
		}
		if err != nil {
			return err
		}
		_ = rc.SetWriteDeadline(time.Now().Add(streamWrite)) // only tests write to what has none
		for i := range page.Lines {
			line, err := json.Marshal(auditRecord(&page.Lines[i]))
			if err == nil {
				_, err = fmt.Fprintf(c.w, "%s\n", line)
			}
			if err != nil {
				panic(http.ErrAbortHandler) // the reader is gone
			}
		}
		left -= len(page.Lines)
		if page.Next == 0 || left == 0 {
			return nil
		}
		q.Before = page.Next
	}
}

func auditRecord(l *fleet.AuditLine) v2.AuditLine {
	return v2.AuditLine{
		At: v2.At(l.At), AccountID: string(l.Account), KeyID: l.Key, KeyName: l.KeyName, PersonID: v2.Text(l.Person), Operator: l.Operator, Operation: l.Operation,
		ObjectID: v2.Text(l.Object), Face: l.Face, Address: v2.Text(l.Address), Status: l.Status,
	}
}
