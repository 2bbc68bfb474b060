// Package replica replicates a state machine: it puts commands into a Raft log, applies what the log
// committed and says when this node leads. It is the only package that knows hashicorp/raft, and it
// knows nothing of what commands mean.
//
// A proposal that returned its result is durable on a majority of the members, synced to their
// disks. One that failed says whether it may have happened: errors match ErrNotLeader, ErrBusy and
// ErrDiskFull when it has not, ErrUnknown when it may have.
//
// Under Config.Dir lie raft.db (the log, synced), snapshots/ (the newest two, synced) and state.db
// (the file of the control plane's state machine, which those two can replace). All of them carry sums: a member whose
// files are damaged or incomplete refuses to start, with ErrDamaged, and never serves wrong data.
//
// Raft itself neither bounds its calls nor notices a disk that hangs: every call on it has a
// deadline here, and calls of the log and of the state machine are timed; one that takes longer
// than Config.HangLimit ends the process through Config.Fatal, so that another member can lead.
package replica
