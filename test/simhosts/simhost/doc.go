// Package simhost runs many simulated hosts in one process. Each joins with a token of its own, has a certificate and a
// connection of its own, and speaks the link protocol as an agent does: heartbeats as ordered, assignments taken by
// generation, reports kept until they are acknowledged, the leader followed by its hint. There are no containers: a pod
// "runs" from its assignment on, or after a time that is set, and what a host with the storage role is to do for network
// volumes is done at once. A worker of a serverless endpoint does each job at once, with what Answer says, if there is one.
//
//	f := simhost.New(simhost.Config{Schedulers: []string{"127.0.0.1:8443"}, Token: simhost.Operator(api, "dc-1"), Hosts: 200})
//	err := f.Join(ctx)             // all hosts join
//	go func() { done <- f.Run(ctx) }() // sessions until ctx ends
//	err = f.Until(ctx, func(c simhost.Count) bool { return c.Connected == 200 })
//	f.Host(3).Cut()                // its connection breaks and it dials no more; what runs there runs on
//	f.Host(3).Mend()
//	f.Host(3).Mute()               // its connection stays and it says nothing, until Speak
//	f.Host(3).Reboot()             // what ran there is gone, and its next session says so
//	f.Host(3).Swap("", gpus)        // it has other GPUs, or the identity is another machine's
//	f.Runs()                       // what runs where now
//	f.Faults()                     // pods that ran on two hosts at once, GPUs that two pods had; empty: none
//
// It never changes a record but through the protocol, and writes nothing to disk.
package simhost
