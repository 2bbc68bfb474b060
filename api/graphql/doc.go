// Package graphql is the GraphQL face of the API (interface.md, "GraphQL"; wire-facts.md, §4). It renames: every field that
// it resolves comes from a record of package v2, and everything that it does is an operation of package rest, called with the
// caller's key, so that permissions, rules and errors are those of REST v2. It stores nothing and decides nothing.
//
// The schema is schema.graphql. Documents are measured before they are parsed (measure.go), and what one request resolves and
// calls is bounded (session.go).
package graphql
