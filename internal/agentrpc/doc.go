// Package agentrpc is the protocol between hosts and schedulers: its messages and gRPC services (generated
// from agentrpc.proto), the TLS configurations of both ends, and the port that gRPC shares with Raft. It
// holds no state of hosts or pods and stores nothing.
package agentrpc
