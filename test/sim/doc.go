// Package sim runs a whole Gantry cluster in virtual time and breaks it. It holds tests only.
//
// Real are: the schedulers' replicas with their Raft logs, the state machine, the service, dispatcher,
// purger, accountant and drainer, gRPC over mutual TLS through the shared port, the CA and join tokens, and the
// agents with their ledgers on disk. Of serverless endpoints: the group that has the jobs, what brings jobs and
// workers together, the agents' gates, and the library of worker programs, which speaks HTTP with the gate. Of
// clusters: what restarts, stops and replaces their members.
// Made up are: the network between them (wire), the machines with their container runtimes (machine), the
// kernel's network (netctl.Fake), the way from a worker to its gate (gates) and the users.
//
// README.md says how to read and repeat a run.
package sim
