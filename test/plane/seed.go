package plane

import (
	"fmt"
	"strings"
	"time"

	"gantry/fleet"
	"gantry/internal/pki"
	"gantry/scheduler"
	"gantry/scheduler/state"
)

// The names of the keys that New makes. User, Reader and Expired are of one account, Other of another,
// Operator of a third.
const (
	User     = "user"
	Reader   = "reader"
	Other    = "other"
	Operator = "operator"
	Expired  = "expired"
)

// What New makes has fixed identifiers.
const (
	Research  fleet.AccountID = "acc00000000001" // of User
	Rival     fleet.AccountID = "acc00000000002" // of Other
	Operators fleet.AccountID = "acc00000000003"

	Host          fleet.HostID = "host0000000001" // in dev-1, SECURE
	CommunityHost fleet.HostID = "host0000000002" // in dev-2, COMMUNITY

	SimGPU       = "NVIDIA H100 80GB HBM3"   // of Host
	CommunityGPU = "NVIDIA GeForce RTX 4090" // of CommunityHost
)

// PublicIP is the public address of Host, which publishes the ports 30000 to 39999 of it.
const PublicIP = "203.0.113.7"

// purposeAPIKey is the purpose under which the service looks for a key's hash.
const purposeAPIKey = "api key"

// KeyText returns the text of the key with this name, which has letters and digits only.
func KeyText(name string) fleet.Secret {
	const chars = 43
	return fleet.Secret("gk_" + name + strings.Repeat("0", chars-len(name)))
}

func (p *Plane) seed() {
	p.t.Helper()
	ca, err := pki.NewCA("planeplaneplane"[:fleet.IDLength], p.Now())
	if err != nil {
		p.t.Fatal(err)
	}
	first, err := scheduler.Bootstrap(p.sealer, ca, p.Now())
	if err != nil {
		p.t.Fatal(err)
	}
	cmds := append([]state.Command{first}, p.members.seed()...)
	for id, name := range map[fleet.AccountID]string{Research: "research", Rival: "rival", Operators: "operators"} {
		cmds = append(cmds, state.PutAccount{Account: fleet.Account{ID: id, Name: name, CreatedAt: p.Now()}})
	}
	cmds = append(cmds,
		p.newKey(4, User, Research, "all"), p.newKey(5, Reader, Research, "readOnly"), p.newKey(6, Expired, Research, "all"),
		p.newKey(7, Other, Rival, "all"), p.newKey(8, Operator, Operators, "admin"),
		state.PutDataCenter{DataCenter: fleet.DataCenter{ID: "dev-1", Name: "Development 1", Region: "EUROPE", Country: "RO"}},
		state.PutDataCenter{DataCenter: fleet.DataCenter{
			ID: "dev-2", Name: "Development 2", Region: "NORTH_AMERICA", Country: "US", GlobalNetwork: true, Compliance: []string{"GDPR", "HIPAA"},
		}})
	cmds = append(cmds, p.join(ca, Host, "dev-1", fleet.CloudSecure, inventory(SimGPU, 8, 80_000, fleet.Inventory{
		Total: fleet.Resources{MilliCPU: 64_000, MemoryMB: 512_000, DiskGB: 1000}, CUDA: "12.8",
		PublicIP: PublicIP, PortFrom: 30_000, PortTo: 39_999,
	}))...)
	cmds = append(cmds, p.join(ca, CommunityHost, "dev-2", fleet.CloudCommunity, inventory(CommunityGPU, 2, 24_000, fleet.Inventory{
		Total: fleet.Resources{MilliCPU: 16_000, MemoryMB: 64_000, DiskGB: 500}, CUDA: "12.4",
	}))...)
	p.do(cmds...)
}

// inventory adds what all hosts have in common.
func inventory(gpu string, n int, memoryMB int64, base fleet.Inventory) fleet.Inventory {
	base.Driver, base.Kernel, base.Runtime, base.AgentVersion = "570.86", "6.1.0", "containerd 1.6.20, runc 1.1.5", "1.0.0"
	base.Volumes = []fleet.BackendKind{fleet.BackendCeph, fleet.BackendLocal, fleet.BackendNFS}
	for i := range n {
		base.GPUs = append(base.GPUs, fleet.GPU{
			UUID: fmt.Sprintf("GPU-%08d-0000-0000-0000-%012d", n, i), Type: gpu, MemoryMB: memoryMB, Island: 1, Simulated: true,
		})
	}
	return base
}

func (p *Plane) newKey(number int, name string, account fleet.AccountID, preset string) state.Command {
	p.t.Helper()
	text := KeyText(name)
	hash, err := p.sealer.MAC(purposeAPIKey, []byte(text.Reveal()))
	if err != nil {
		p.t.Fatal(err)
	}
	can, ok := fleet.Preset(preset)
	if !ok {
		p.t.Fatalf("there is no preset %s", preset)
	}
	key := fleet.Key{
		ID: fleet.KeyID(fmt.Sprintf("key%011d", number)), Account: account, Name: name, Hint: fleet.KeyHint(text),
		Hash: hash[:], Can: can, CreatedAt: p.Now(),
	}
	if preset != "readOnly" {
		key.Invoke = []string{fleet.InvokeAll}
	}
	if name == Expired {
		key.ExpiresAt = p.Now().Add(-time.Second)
	}
	return state.PutKey{Key: key}
}

// join are the commands that make a host, as an agent does: with a token, then with its first session.
func (p *Plane) join(ca *pki.CA, id fleet.HostID, dc fleet.DataCenterID, cloud fleet.Cloud, inv fleet.Inventory) []state.Command {
	token := pki.NewJoinToken(ca.Digest())
	hash := pki.Hash(token.Secret)
	machine := "machine-" + string(id)
	inv.Tunnel = tunnel(id)
	return []state.Command{
		state.PutToken{At: p.Now(), Token: fleet.JoinToken{
			ID: token.ID, Hash: hash[:], DataCenter: dc, Cloud: cloud, ExpiresAt: p.Now().Add(time.Hour),
		}},
		state.JoinHost{Token: token.ID, Hash: hash[:], At: p.Now(), Host: fleet.Host{
			ID: id, Name: "of-" + string(dc), MachineID: machine, JoinedAt: p.Now(),
		}},
		state.ConnectHost{Host: id, MachineID: machine, BootID: "boot-1", Inventory: inv, At: p.Now()},
	}
}
