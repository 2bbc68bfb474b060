package main

import "context"

// machines are the names of the lab's computers: the first has the scheduler and the storage, the others run pods.
var machines = []string{"control", "host-1", "host-2"}

var allSteps = []step{
	{"debs", "build the packages", (*lab).debs},
}

func (l *lab) debs(ctx context.Context) error {
	_, err := l.local(ctx, "scripts/deb.sh amd64", l.root, "scripts/deb.sh", "amd64")
	return err
}
