// Package queue is the life of serverless jobs as a state machine: which jobs wait, who runs them, how they ended, and
// until when they are kept (interface.md, "Job lifecycle"; wire-facts.md, §1 and §2).
//
// It is pure: no clock, no random value, no goroutine, no input or output. Each command carries its time, and every
// replica that applies the same commands in the same order has the same jobs. Bodies (inputs, outputs, chunks) lie
// elsewhere; a job has references to them, and Queue tells when one is not needed any more.
//
// Nothing here is durable: whoever applies the commands has a log and snapshots (Jobs, Restore).
//
// A job is with one worker at a time. It is given out again when its worker was lost, as often as its policy allows.
// Attempts are numbered, so what comes late or twice changes nothing. But an output of an earlier attempt ends a job
// that has not ended: work that was done is never thrown away.
package queue
