// Package rest is the REST face of Gantry: /v2 for users, /admin/v1 for operators, /healthz. It reads
// requests strictly, asks a Service and shows records in the form of the public contract. Routes,
// schemas and the OpenAPI document come from one declaration; every route declares its scope and its limit class. The
// package stores nothing, decides nothing about pods, never shows a submitted value in an error and
// never logs a body or a key. When a call that changes something answers 2xx, the Service has made it durable.
//
// Bodies are checked by this package, not by huma: huma's own checks echo submitted values, match
// property names without regard to case, let null stand for absence and are set through
// package-level variables.
package rest
