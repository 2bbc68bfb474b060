// Package dev runs a whole Gantry on this machine: one scheduler, one agent and, unless it is given one, a containerd
// of its own, each a child process. It starts them in order, starts again what dies, tells other programs where they
// are, and takes everything down in order, so that no container, mount, namespace, link, rule or process stays.
//
// Everything durable lies in one folder, which at most one dev uses at a time (an flock on DIR/lock). What dev itself
// must remember is in DIR/dev-state.json, which is replaced as a whole and synced before the step that relies on it.
// A dev that was killed leaves its children running; the next one on the folder finds them by their pid files, stops
// them and goes on with the same keys and pods.
//
// It never places, starts or stops a pod itself, and never kills a process that it cannot prove to be its own.
package dev
