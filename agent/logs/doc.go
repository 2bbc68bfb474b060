// Package logs keeps and serves the log lines of the pods of one host.
//
// # Files
//
// Every pod has a folder, made and removed by the agent. It holds two series
// of text files: container.log, written by the logger process (one per
// running container, started by the container runtime's shim), and
// system.log, written by the agent. A file that would grow beyond MaxBytes is
// renamed to NAME.1, NAME.1 to NAME.2 and so on; Keep files exist at most, so
// a series never takes more than Keep x MaxBytes. NAME.lock holds the lock
// that makes one process the writer of a series.
//
// A record is one line:
//
//	2026-01-02T15:04:05.000000001Z 17 stdout F the text
//
// that is: time (UTC, always nine digits), sequence number, stream (stdout,
// stderr, system), F for the end of a line or P where the line goes on in a
// later record of the same stream, one space, the text as the container wrote
// it, bytes unchanged. A text has at most MaxText bytes; longer lines are cut,
// between two UTF-8 characters where there are any. An incomplete line becomes
// a P record after about a second, so that prompts and progress bars show. What
// a container prints on stdout and stderr within a few microseconds may swap
// places, since it comes through two pipes.
//
// Within a series both time and sequence number grow strictly, also over
// restarts of the container, of the writer and of the host, and when the
// clock is set back: a record is then 1 ns younger than the one before it.
// Time and sequence number together are the id of a line.
//
// # What is lost, and when
//
// A writer hands every batch to the kernel with one write(2) before it reads
// on, and never calls fsync: what was written survives the death of every
// process, and the last seconds may be lost with the power. A torn record is
// closed with a newline by the next writer; readers skip what is not a record.
//
// Lines beyond Rate bytes per second (after a Burst) are read, counted and
// dropped, as are lines that the disk refuses. A record of stream system in
// container.log ("dropped 5 lines, 400 bytes: ...") tells the sum, at most once
// a second. A container is never ended, nor blocked for longer than one
// write(2) takes, because of its log.
//
// The package never interprets a text, never starts or stops a container, and
// uses the standard library only, so that the logger process stays small.
package logs
