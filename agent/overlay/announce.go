package overlay

import (
	"context"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"time"

	"gantry/fleet"
	"gantry/netctl/tunnel"
)

// openKey reads the tunnel's private key, and makes one where there is none.
func (k *Reconciler) openKey() {
	key, err := tunnel.ReadKey(k.KeyFile)
	if err == nil {
		k.key = key
	} else {
		if !errors.Is(err, fs.ErrNotExist) {
			k.Log.Error("tunnel key unreadable; generated a new one", "err", err)
		}
		k.newKey()
	}
	k.says = fleet.HostTunnel{PublicKey: k.key.Public(), UserSpace: k.Tunnel.UserSpace()}
}

// newKey takes another key. Where it cannot be kept, it serves until the agent ends.
func (k *Reconciler) newKey() {
	k.key = tunnel.NewKey()
	k.keepKey(k.key)
}

func (k *Reconciler) keepKey(key tunnel.Key) {
	if err := tunnel.WriteKey(k.KeyFile, key); err != nil {
		k.Log.Error("save the tunnel's key for the next start", "err", err)
	}
}

// renewKey announces another key when the present one is too old. It is in use once the scheduler has it on record: then other
// hosts are told of it, and until then, also while no scheduler is there, they know the present one.
func (k *Reconciler) renewKey(now time.Time) {
	info, err := os.Stat(k.KeyFile)
	if k.Tunnel == nil || k.KeyAge <= 0 || err != nil {
		return
	}
	k.mu.Lock()
	due := k.next == (tunnel.Key{}) && now.Sub(info.ModTime()) >= k.KeyAge && now.Sub(k.renewed) >= k.KeyAge
	if due {
		k.next, k.renewed = tunnel.NewKey(), now
		k.says.PublicKey = k.next.Public()
	}
	said := k.says.PublicKey
	k.mu.Unlock()
	if due {
		k.Log.Info("tunnel key rotated", "public", said)
		k.Changed()
	}
}

// takeKey uses the key that was announced, once it is the one on record.
func (k *Reconciler) takeKey(onRecord string) {
	k.mu.Lock()
	taken := onRecord != "" && k.next.Public() == onRecord
	if taken {
		k.key, k.next = k.next, tunnel.Key{}
	}
	key := k.key
	k.mu.Unlock()
	if taken {
		poke(k.tun.wake)
		k.keepKey(key)
	}
}

// Announce is the host's end of the tunnel; the zero value: it has none.
func (k *Reconciler) Announce() fleet.HostTunnel {
	if k == nil {
		return fleet.HostTunnel{}
	}
	says, _ := k.announced()
	return says
}

// announced is what is announced, and whether nothing is missing.
func (k *Reconciler) announced() (says fleet.HostTunnel, whole bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.says, k.found || k.Tunnel == nil || k.Find == nil
}

// announce looks where other hosts reach this one.
func (k *Reconciler) announce(ctx context.Context) {
	if k.Tunnel == nil || k.Find == nil {
		return
	}
	k.mu.Lock()
	port := k.Port
	if port == 0 {
		port = k.desired.settings.wireport
	}
	k.mu.Unlock()
	endpoint, plain, err := k.Find(ctx, port)
	mtu := 0
	if k.MTU != nil && plain.IsValid() {
		mtu = k.MTU(plain)
	}
	k.mu.Lock()
	before := k.says
	if k.found = err == nil; err == nil {
		k.says.Endpoint, k.says.Plain, k.says.MTU = endpoint, plain, mtu
		if plain == endpoint.Addr() {
			k.says.Plain = netip.Addr{}
		}
	}
	changed := before != k.says
	again := err != nil && k.unfound != nil && k.unfound.Error() == err.Error()
	k.unfound = err
	k.mu.Unlock()
	if err != nil && ctx.Err() == nil && !again {
		k.Log.Warn("find the address under which other hosts reach this one", "err", err)
	}
	if changed {
		k.Changed()
		poke(k.tun.wake)
	}
}
