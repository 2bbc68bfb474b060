package rest

import (
	"context"
	"net/http"
	"reflect"
	"slices"
	"strconv"

	"github.com/danielgtaylor/huma/v2"

	"gantry/api/auth"
	"gantry/api/limit"
	"gantry/api/problem"
	"gantry/api/v2"
	"gantry/fleet"
)

const schemaPrefix = "#/components/schemas/"

// These name the members of an operation that tell its scope and its limit class.
const (
	scopeExtension = "x-gantry-scope"
	// podKeyExtension is there where a pod's own key will do for that pod.
	podKeyExtension = "x-gantry-pod-key"
	// limitExtension is there where an operation does not count against the limits of the caller's account.
	limitExtension = "x-gantry-limit"
)

func document(version string) *huma.OpenAPI {
	return &huma.OpenAPI{
		OpenAPI: "3.1.0",
		Info: &huma.Info{
			Title: "Gantry", Version: "2.0.0",
			Description: "Rents containerized compute: pods on GPU and CPU hosts. Times are RFC 3339 in UTC with milliseconds, money is USD, " +
				"a GB is 10^9 bytes. Unknown query parameters are ignored. A body is one JSON object of at most 1 MiB, nested at most 64 deep, " +
				"without duplicate or unknown properties. Answers of success have the headers RateLimit and RateLimit-Policy as those of errors. " +
				"Errors are problems " +
				"(application/problem+json) with a stable code. Clients must take members of answers that they do not know.",
			License:    &huma.License{Name: "Apache 2.0", Identifier: "Apache-2.0"},
			Extensions: map[string]any{"x-gantry-version": version},
		},
		Servers: []*huma.Server{{URL: "/", Description: "The installation that serves this document."}},
		Components: &huma.Components{
			Schemas: newRegistry(),
			SecuritySchemes: map[string]*huma.SecurityScheme{
				"bearer": {Type: "http", Scheme: "bearer", Description: "An API key: Authorization: Bearer gk_…"},
			},
		},
		Security: []map[string][]string{{"bearer": {}}}, // of every operation that says nothing else
		Tags: []*huma.Tag{
			{Name: "Pods", Description: "GPU and CPU pods."},
			{Name: "Clusters", Description: "Pods on hosts of their own, made and ended together."},
			{Name: "Templates", Description: "Reusable configurations of pods."},
			{Name: "Serverless", Description: "Endpoints whose workers answer jobs."},
			{Name: "Registries", Description: "Credentials for private images."},
			{Name: "Network Volumes", Description: "Storage that outlives pods, and the keys of its S3 interface."},
			{Name: "Network", Description: "The account's private networks, which pods join with globalNetworking."},
			{Name: "Catalog", Description: "What can be asked for, and what is free."},
			{Name: "Account", Description: "The caller's account, its SSH keys, secrets and API keys."},
			{Name: "Billing", Description: "What the account was charged."},
			{Name: "Operators", Description: "For those who run the fleet."},
		},
	}
}

// declare describes an operation but for its bodies.
func (a *API) declare(rt route) *huma.Operation {
	op := &huma.Operation{
		Method: rt.method, Path: rt.path, OperationID: rt.id, Tags: []string{rt.tag}, Summary: rt.summary, Description: rt.text,
		Parameters: rt.params, Responses: map[string]*huma.Response{},
		Extensions: map[string]any{scopeExtension: rt.scope.String()},
	}
	if rt.limit != limit.PerAccount {
		op.Extensions[limitExtension] = string(rt.limit)
	}
	if rt.scope.Pod {
		op.Extensions[podKeyExtension] = true
	}
	op.Responses[strconv.Itoa(rt.status)] = &huma.Response{Description: successText(rt.status)}
	if rt.also != "" {
		op.Responses["204"] = &huma.Response{Description: rt.also}
	}
	errs := slices.Clone(rt.errors)
	if rt.scope.Public {
		op.Security = []map[string][]string{}
		errs = append(errs, http.StatusBadRequest)
	} else {
		errs = append(errs, http.StatusUnauthorized, http.StatusForbidden, http.StatusTooManyRequests)
	}
	if len(rt.params) > 0 {
		errs = append(errs, http.StatusBadRequest, http.StatusUnprocessableEntity)
	}
	if slices.ContainsFunc(rt.params, func(p *huma.Param) bool { return p.In == "path" }) {
		errs = append(errs, http.StatusNotFound)
	}
	if rt.in != nil {
		errs = append(errs, http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity)
	}
	for _, status := range errs {
		if key := strconv.Itoa(status); op.Responses[key] == nil {
			op.Responses[key] = a.problemResponse(status)
		}
	}
	op.Responses["default"] = a.problemResponse(http.StatusServiceUnavailable)
	return op
}

func successText(status int) string {
	if status == http.StatusNoContent {
		return "Done; there is no body."
	}
	return "The answer." // of 201, too: equal ones are one component
}

func (a *API) problemResponse(status int) *huma.Response {
	s := a.schemaOf(reflect.TypeFor[v2.Problem]())
	return &huma.Response{
		Description: problemText(status),
		Content:     map[string]*huma.MediaType{problem.ContentType: {Schema: s, Example: exampleProblem(status)}},
	}
}

func problemText(status int) string {
	switch status {
	case http.StatusBadRequest:
		return "The request cannot be read, breaks a rule between fields, or finds no room."
	case http.StatusUnauthorized:
		return "The bearer token is missing, malformed, expired or unknown."
	case http.StatusPaymentRequired:
		return "The balance is below one hour of the cost, or it is beyond the spend limit."
	case http.StatusForbidden:
		return "The key lacks the permission that the operation's scope names."
	case http.StatusNotFound:
		return "It does not exist, or is another account's."
	case http.StatusConflict:
		return "The present state does not allow it."
	case http.StatusRequestEntityTooLarge:
		return "The body is larger than 1 MiB."
	case http.StatusUnsupportedMediaType:
		return "The content type is not application/json."
	case http.StatusUnprocessableEntity:
		return "A value breaks its own rule; errors names each."
	case http.StatusTooManyRequests:
		return "A limit is reached; Retry-After tells how many seconds to wait."
	case http.StatusServiceUnavailable:
		return "503: the request could not be decided, or its outcome is unknown; Retry-After tells how many seconds to wait. " +
			"500: a fault of the service; the request id finds it in the log."
	}
	return ""
}

// describeBody documents a JSON body and returns the rule that it must meet.
func (a *API) describeBody(op *huma.Operation, rt route, t reflect.Type) *rule {
	s, body := a.messageRule(t)
	op.RequestBody = jsonBody(s, rt.in)
	return body
}

func jsonBody(s *huma.Schema, example any) *huma.RequestBody {
	return &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{"application/json": {Schema: s, Example: example}}}
}

// messageRule returns the schema of what a client sends, and the rule that it must meet.
func (a *API) messageRule(t reflect.Type) (*huma.Schema, *rule) {
	s := a.schemaOf(t)
	a.noteBody(s)
	body, err := compile(a.huma.OpenAPI().Components.Schemas, s)
	if err != nil {
		a.faults = append(a.faults, err)
	}
	return s, body
}

func (a *API) describeAnswer(op *huma.Operation, rt route, t reflect.Type) {
	answer(op, rt, a.schemaOf(t), rt.out)
}

// answer documents the body of success.
func answer(op *huma.Operation, rt route, s *huma.Schema, example any) {
	for _, status := range append([]int{rt.status}, rt.alike...) {
		key := strconv.Itoa(status)
		if op.Responses[key] == nil {
			op.Responses[key] = &huma.Response{Description: successText(status)}
		}
		if op.Responses[key].Content == nil {
			op.Responses[key].Content = map[string]*huma.MediaType{}
		}
		op.Responses[key].Content["application/json"] = &huma.MediaType{Schema: s, Example: example}
	}
}

// noteBody remembers the components that a request body is made of.
func (a *API) noteBody(s *huma.Schema) {
	if s == nil {
		return
	}
	if s.Ref != "" {
		name := s.Ref[len(schemaPrefix):]
		if a.bodies[name] {
			return
		}
		a.bodies[name] = true
		s = a.huma.OpenAPI().Components.Schemas.SchemaFromRef(s.Ref)
	}
	a.noteBody(s.Items)
	for _, p := range s.Properties {
		a.noteBody(p)
	}
}

// openSchemas lets answers have members that a client does not know yet.
func (a *API) openSchemas() {
	for name, s := range a.huma.OpenAPI().Components.Schemas.Map() {
		if !a.bodies[name] {
			s.AdditionalProperties = nil
		}
	}
}

const (
	documentTag  = "Document" // group of the operations that show a face's document
	documentName = "/openapi.json"
)

// registerDocument serves the document itself at a path.
func (a *API) registerDocument(at, tag string) {
	rt := route{
		method: http.MethodGet, path: at, id: "getOpenApi", tag: tag, summary: "This document",
		text: "Returns this document, OpenAPI 3.1. Needs no key.", scope: auth.Public(), limit: limit.Exempt, status: http.StatusOK,
	}
	op := a.declare(rt)
	op.Responses["200"].Content = map[string]*huma.MediaType{"application/json": {Schema: &huma.Schema{Type: huma.TypeObject}, Example: map[string]any{"openapi": "3.1.0"}}}
	a.serve(op, rt, func(_ context.Context, c *call) error {
		made := a.render()
		if made.err != nil {
			return made.err
		}
		c.w.Header().Set("Content-Type", "application/json")
		c.w.Header().Set("Cache-Control", "no-cache")
		c.w.WriteHeader(http.StatusOK)
		_, _ = c.w.Write(made.document) // a client that left is not told
		return nil
	})
}

// Document returns the OpenAPI document as JSON; nil when it cannot be encoded. The caller must not change it.
func (a *API) Document() []byte { return a.render().document }

func exampleProblem(status int) v2.Problem {
	code := map[int]fleet.Code{
		http.StatusBadRequest: fleet.CodeConflictRule, http.StatusUnauthorized: fleet.CodeUnauthorized, http.StatusPaymentRequired: fleet.CodeNoCredit,
		http.StatusForbidden: fleet.CodeForbidden, http.StatusNotFound: fleet.CodeNotFound, http.StatusConflict: fleet.CodeNotAllowed,
		http.StatusRequestEntityTooLarge: fleet.CodeTooLarge, http.StatusUnsupportedMediaType: fleet.CodeMediaType,
		http.StatusUnprocessableEntity: fleet.CodeInvalid, http.StatusTooManyRequests: fleet.CodeLimited, http.StatusServiceUnavailable: fleet.CodeUnavailable,
	}[status]
	e := &fleet.Error{Code: code, Msg: map[fleet.Code]string{
		fleet.CodeConflictRule: "gpu and cpu exclude each other: set exactly one", fleet.CodeUnauthorized: "missing bearer token",
		fleet.CodeNoCredit: "Your account balance is too low to rent a pod", fleet.CodeNotAllowed: "start is not allowed while the pod is RUNNING",
		fleet.CodeLimited: "rate limit exceeded for the minute window",
	}[code]}
	if code == fleet.CodeInvalid {
		e.Details = []string{"$: missing property 'name'"}
	}
	return problem.From(e, "k3n8w0zq5r7d2a")
}
