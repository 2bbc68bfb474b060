// Package helper runs file system calls that may never return in short-lived processes: the caller has a deadline, and
// what is stuck is killed, left alone and counted.
package helper
