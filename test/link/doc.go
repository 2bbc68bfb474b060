// Package link tries real agents against the scheduler's end of the link, over real sockets: on networks that
// lose packets, with copies of one host's disk, and with several schedulers of which one leads. The state machine
// is the real one, without Raft; pods there are none.
package link
