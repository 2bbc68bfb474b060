// Package client speaks the public REST API and the operator API of Gantry over HTTP: one method for each call, the
// answer both decoded and as the bytes that were sent, problem bodies as *Problem, a server that does not answer as
// *Unreachable. It never repeats a call by itself, except that a followed log is taken up again after the last line
// that arrived. It stores nothing and never puts the key anywhere but in the Authorization header.
package client
