package chaos

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"gantry/api/admin"
	"gantry/test/simhosts/simhost"
)

const simPlaces = 3

// startSims makes simulated hosts in machines of their own and waits until they are connected.
func (c *cluster) startSims(hosts int) error {
	ctx, stop := context.WithCancel(context.Background())
	c.stopSims, c.simsDone = stop, make(chan struct{})
	var running sync.WaitGroup
	for i := range min(hosts, simPlaces) {
		place, err := suite.lab.Place(fmt.Sprintf("%s-h%d", c.name, i+1))
		if err != nil {
			return err
		}
		fleet := simhost.New(simhost.Config{
			Schedulers: c.links(), Token: c.hostToken, Hosts: (hosts + i) / simPlaces, Prefix: fmt.Sprintf("%s-sim%d", c.name, i+1),
			Answer: func(job []byte) []byte {
				if does := c.answer.Load(); does != nil {
					return (*does)(i, job)
				}
				return job
			},
			Dial: func(ctx context.Context, addr string) (net.Conn, error) {
				ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
				defer cancel()
				return place.Dial(ctx, "tcp", addr)
			},
		})
		joining, cancel := context.WithTimeout(ctx, upTime)
		err = fleet.Join(joining)
		cancel()
		if err != nil {
			return err
		}
		c.sims, c.simPlace = append(c.sims, fleet), append(c.simPlace, place)
		running.Go(func() { _ = fleet.Run(ctx) }) // its error is that ctx has ended
	}
	go func() { running.Wait(); close(c.simsDone) }()
	return until(upTime, c.simsConnected)
}

func (c *cluster) stopHosts() {
	if c.stopSims != nil {
		c.stopSims()
		<-c.simsDone
	}
}

// hostToken asks for a token with which a host may join.
func (c *cluster) hostToken(context.Context) (string, error) {
	var token admin.JoinToken
	err := c.admin(http.MethodPost, "/admin/v1/hosts/tokens", map[string]any{"dataCenterId": "dc-1"}, &token) //nolint:contextcheck // it has a limit of its own
	return token.Token.Reveal(), err
}

func (c *cluster) simsConnected() error {
	for _, f := range c.sims {
		if n := f.Count(); n.Connected < n.Joined {
			return fmt.Errorf("%d of %d hosts are connected", n.Connected, n.Joined)
		}
	}
	return nil
}

// simFaults tells of pods that ran twice and GPUs that two pods had.
func (c *cluster) simFaults() error {
	var faults []error
	for _, f := range c.sims {
		for _, text := range f.Faults() {
			faults = append(faults, errors.New(text))
		}
	}
	return errors.Join(faults...)
}

// simsRun lists what runs on all simulated hosts.
func (c *cluster) simsRun() []simhost.Run {
	var out []simhost.Run
	for _, f := range c.sims {
		out = append(out, f.Runs()...)
	}
	return out
}

// simRuns counts what runs on all simulated hosts, by pod: one pod must not run in two places either.
func (c *cluster) simRuns() (map[string]int, error) {
	runs := map[string]int{}
	var faults []error
	for _, r := range c.simsRun() {
		if runs[string(r.Pod)]++; runs[string(r.Pod)] > 1 {
			faults = append(faults, fmt.Errorf("pod %s runs %d times", r.Pod, runs[string(r.Pod)]))
		}
	}
	return runs, errors.Join(faults...)
}
