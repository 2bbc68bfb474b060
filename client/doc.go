// Package client speaks the public REST API and the operator API of Gantry over HTTP: one method for each call, the
// answer both decoded and as the bytes that were sent, problem bodies as *Problem, a server that does not answer as
// *Unreachable. It stores nothing and never puts the key anywhere but in the Authorization header.
//
// A call is repeated only where that is safe: a GET, and a create, which carries an idempotency key of its own, while
// the API is away for a moment; any call that the rate limits refused, where the wait that the API asks for is short.
// A log that is read is taken up again after the last line that arrived. Exec sessions and file streams are not.
package client
