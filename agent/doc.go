// Package agent is the daemon of a host: it makes the rooms below it, registers each for the messages of schedulers that it takes, and
// runs them until it is told to end. It never decides which pods run here. Containers outlive it: after a restart it finds them by label
// and goes on, and it starts nothing new until it has heard a scheduler.
package agent
