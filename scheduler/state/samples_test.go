package state

import (
	"net/netip"
	"time"

	"gantry/fleet"
)

// sample is a command as some version writes it. The first of a type has no suffix; later ones set the
// fields that the command got since.
type sample struct {
	suffix string
	cmd    Command
}

// samples holds every command, every field set in one sample at least.
func samples() []Command {
	out := firstSamples()
	for _, s := range laterSamples() {
		out = append(out, s.cmd)
	}
	return out
}

// named returns all samples with their suffixes.
func named() []sample {
	var out []sample
	for _, cmd := range firstSamples() {
		out = append(out, sample{cmd: cmd})
	}
	return append(out, laterSamples()...)
}

func ptr[T any](v T) *T { return &v }

func sampleOnce() *fleet.Once { return &fleet.Once{Key: "once-1", Fingerprint: []byte("request")} }

// samplePod is a pod with every field that pods got after the first version.
func samplePod() fleet.Pod {
	pod := podOn("pod00000000001", "host0000000001", 0)
	pod.Spec.Registry, pod.Spec.Template = "registry000001", "template000001"
	pod.Spec.Persistent = &fleet.PersistentMount{SizeGB: 10, Path: "/data"}
	pod.Spec.Network = &fleet.NetworkMount{Volume: "volume00000001", Path: "/net"}
	pod.Spec.CUDA = &fleet.CUDARange{Allowed: []string{"12.8"}, Min: "12.4"}
	pod.Spec.MinRAMPerGPU, pod.Spec.MinVCPUPerGPU, pod.Spec.GlobalNetworking = 8, 4, true
	pod.Mappings = []fleet.PortMapping{{Private: 22, Public: 30_000}}
	return pod
}

func sampleTemplate() fleet.Template {
	return fleet.Template{
		ID: "template000001", Account: "acme", Name: "n", Image: "busybox", Args: "sleep 1", DiskGB: 5,
		Ports: []fleet.Port{{Number: 22, Protocol: "tcp"}}, Env: map[string]string{"A": "1"}, Registry: "registry000001",
		Persistent: &fleet.PersistentMount{SizeGB: 10, Path: "/data"}, Serverless: true, Public: true,
		Category: fleet.CategoryNVIDIA, StartSSH: true, StartJupyter: true, AllowedCUDA: []string{"12.8"},
		Source: fleet.SourceOfficial, Rev: 1, CreatedAt: at(1),
	}
}

func sampleVolume() fleet.Volume {
	return fleet.Volume{
		ID: "volume00000001", Account: "acme", Name: "v", SizeGB: 100, DataCenter: "dc-1", Type: fleet.VolumeFast, Rev: 1,
		CreatedAt: at(1),
	}
}

// storedVolume is a volume with every field that volumes got after the first version.
func storedVolume() fleet.Volume {
	v := sampleVolume()
	v.Backend, v.Dir, v.IDBase, v.State = "fast-1", "abcdefghijklmnopqrstuvwxyz", fleet.VolumeIDsFirst, fleet.VolumeDeleting
	v.ProvisionedGB, v.ReadOnly, v.DeletedAt = 100, true, at(9)
	return v
}

func sampleS3Key() fleet.S3Key {
	return fleet.S3Key{
		ID: "user_000000000000000000000000001", Account: "acme", Name: "backup", Sealed: []byte("sealed"), ReadOnly: true,
		CreatedAt: at(1), ExpiresAt: at(1_000_000),
	}
}

func sampleEndpoint() fleet.Endpoint {
	return fleet.Endpoint{
		ID: "endpoint000001", Account: "acme", Rev: 1, CreatedAt: at(1),
		Spec: fleet.EndpointSpec{
			Name: "embed", Type: fleet.EndpointQueue, Image: "busybox", Args: "serve", DiskGB: 20,
			Ports: []fleet.Port{{Number: 8000, Protocol: "http"}}, Env: map[string]string{"K": "v"}, Registry: "registry000001", Template: "template000001",
			GPU: &fleet.EndpointGPU{Pools: []string{"ADA_24"}, Excluded: []string{h100}, Count: 2, CUDA: &fleet.CUDARange{Min: "12.4", Allowed: []string{"12.8"}}},
			CPU: []fleet.CPURequest{{Flavor: "cpu3c", VCPU: 2, MemoryGB: 4}}, Workers: fleet.WorkerBounds{Min: 1, Max: 3, Idle: 10},
			Scaler: fleet.Scaler{Type: fleet.ScaleByDelay, Value: 4.5}, Centers: []fleet.DataCenterID{"dc-1"}, Volumes: []fleet.VolumeID{"volume00000001"},
			TimeoutMS: 300_000, FlashBoot: fleet.FlashBootOn, Retries: 1, FailAfter: 600,
		},
		Releases: []fleet.Release{{
			ID: "release0000001", Version: 1, By: "k1", At: at(1), Changes: []fleet.FieldChange{{Field: "image", Old: `"a"`, New: `"b"`}},
		}},
	}
}

func balancedEndpoint() fleet.Endpoint {
	e := sampleEndpoint()
	e.Spec.Type, e.Spec.WaitSeconds, e.Spec.MaxBodyMB = fleet.EndpointBalanced, 120, 30
	return e
}

// Of models: an endpoint with some, a worker of it and a host that has them.
var sampleModels = []string{"https://huggingface.co/org/name:main"}

func modelEndpoint() fleet.Endpoint {
	e := sampleEndpoint()
	e.Spec.Models = sampleModels
	return e
}

func modelWorker() fleet.Pod {
	p := samplePod()
	p.Spec.Models = sampleModels
	return p
}

func modelInventory() fleet.Inventory {
	inv := sampleInventory()
	inv.Models = sampleModels
	return inv
}

func signedEndpoint() fleet.Endpoint {
	e := sampleEndpoint()
	e.Spec.WebhookKey = []byte("sealed")
	return e
}

// sampleBackends are a backend of each kind.
func sampleBackends() (nfs, ceph, local fleet.Backend) {
	nfs = fleet.Backend{
		ID: "std-1", DataCenter: "dc-1", Type: fleet.VolumeStandard, Kind: fleet.BackendNFS,
		NFS:         &fleet.NFSBackend{Server: "nfs.example", Export: "/export/pods", Options: "vers=4.1,nconnect=4"},
		StorageHost: "host0000000001", StoragePath: "/srv/pods", Closed: true, Sealed: []byte("sealed"), Rev: 3, CreatedAt: at(1),
	}
	ceph = fleet.Backend{
		ID: "fast-1", DataCenter: "dc-1", Type: fleet.VolumeFast, Kind: fleet.BackendCeph, Sealed: []byte("sealed"),
		Ceph: &fleet.CephBackend{
			Monitors: []string{"192.0.2.1:6789", "[2001:db8::1]:3300"}, FileSystem: "cephfs", Path: "/pods", User: "pods", AdminUser: "pods-admin",
		},
	}
	local = fleet.Backend{
		ID: "dev-1", DataCenter: "dc-1", Type: fleet.VolumeStandard, Kind: fleet.BackendLocal,
		Local: &fleet.LocalBackend{Path: "/srv/gantry"}, StorageHost: "host0000000001",
	}
	return nfs, ceph, local
}

func samplePrices() fleet.StoragePrices {
	return fleet.StoragePrices{
		ContainerDisk: 1, PersistentRunning: 2, PersistentStopped: 3, VolumeFirst: 4, VolumeBeyond: 5, FastFirst: 6, FastBeyond: 7,
	}
}

// laterCommands holds one command of every type that came after the first version.
func laterCommands() []Command {
	prices := samplePrices()
	nfs, _, _ := sampleBackends()
	return []Command{
		UpdatePod{
			Account: "acme", Pod: "pod00000000001", Rev: 3, Spec: samplePod().Spec, Locked: true, Restart: true,
			Need: fleet.Resources{MilliCPU: 1, MemoryMB: 2, DiskGB: 3}, Mappings: samplePod().Mappings, At: at(4),
		},
		Put[fleet.Template]{Record: sampleTemplate(), Once: sampleOnce()},
		Delete[fleet.Template]{Account: "acme", ID: "template000001"},
		Put[fleet.Registry]{Record: fleet.Registry{
			ID: "registry000001", Account: "acme", Name: "r", Sealed: []byte("sealed"), CreatedAt: at(1),
		}, Once: sampleOnce()},
		Delete[fleet.Registry]{Account: "acme", ID: "registry000001"},
		SetLimits{Limits: map[string]*int64{"pods": ptr(int64(5)), "gpus": nil}},
		SetSSHKeys{Account: "acme", Keys: []string{"ssh-ed25519 AAAA a"}},
		UpdateKey{Account: "acme", Key: "k1", Name: ptr("ci"), Disabled: ptr(true)},
		TouchKeys{Used: map[fleet.KeyID]time.Time{"k1": at(1), "k2": at(2)}},
		UpdateAccount{Account: "acme", Name: ptr("Acme"), Prepaid: ptr(true), Quotas: &fleet.Quotas{Minute: 1, Hour: 2, Day: 3}},
		AddCredit{Account: "acme", Amount: -5, At: at(1), Once: sampleOnce()},
		PutGPUType{fleet.GPUType{
			ID: h100, Name: "H100", Pool: "p", Manufacturer: "NVIDIA", MemoryGB: 80, Secure: 1, Community: 2, Serverless: 3,
			Contributed: true,
		}},
		DeleteGPUType{ID: h100},
		PutCPUFlavor{fleet.CPUFlavor{
			ID: "cpu3c", Name: "Compute", Group: "g", MinVCPU: 2, MaxVCPU: 32, RAMPerVCPU: 2.5, DiskPerVCPU: 10, SecureVCPU: 1,
			Serverless: 2,
		}},
		DeleteCPUFlavor{ID: "cpu3c"},
		PutStoragePrices{prices},
		DeleteDataCenter{ID: "dc-1"},
		SetHostCloud{Host: "host0000000001", Cloud: fleet.CloudCommunity},
		CreateVolume{Volume: sampleVolume(), Once: sampleOnce()},
		UpdateVolume{Account: "acme", Volume: "volume00000001", Name: ptr("v"), SizeGB: ptr(200), At: at(2)},
		DeleteVolume{Account: "acme", Volume: "volume00000001", At: at(3)},
		SettleMeters{Meters: []MeterID{{Kind: fleet.ChargePod, ID: "pod00000000001"}}, At: at(4)},
		ExhaustAccounts{Accounts: []fleet.AccountID{"acme"}, At: at(5)},
		PurgeUsage{Before: at(6), Limit: 10},
		PurgeOnce{Before: at(7)},
		SetTemplateSource{Template: "template000001", Source: fleet.SourceVerified},
		PutMember{sampleMember()},
		JoinMember{Token: "t2", Hash: []byte("h"), Member: sampleMember(), At: at(1)},
		RemoveMember{Member: "member00000001", At: at(2)},
		RaiseLevel{Level: 2},
		RestoreCluster{ID: "c2", Lineage: 1_800_000_000, Member: sampleMember(), SnapshotAt: at(3), At: at(4)},
		SetHostEligibility{Host: "host0000000001", Eligibility: fleet.EligibilityDraining, KeepRunning: true, At: at(5)},
		SetHostLabels{Host: "host0000000001", Set: map[string]string{"rack": "7", "row": "b"}, Unset: []string{"old"}},
		FenceHost{Host: "host0000000001", At: at(6)},
		RemoveHost{Host: "host0000000001", At: at(7)},
		PurgeHosts{Before: at(8)},
		AlarmHost{Host: "host0000000001", Text: "look", At: at(9)},
		MovePod{Pod: "pod00000000001", Rev: 3, At: at(10)},
		EvictPod{Pod: "pod00000000001", Rev: 3, At: at(11)},
		UpdateInventory{Host: "host0000000001", Epoch: 2, Inventory: sampleInventory(), At: at(11)},
		Put[fleet.AccountSecret]{Record: fleet.AccountSecret{
			Account: "acme", Name: "HF_TOKEN", Sealed: []byte("sealed"), CreatedAt: at(1), UpdatedAt: at(2),
		}},
		Delete[fleet.AccountSecret]{Account: "acme", ID: "HF_TOKEN"},
		PutBackend{Backend: nfs, New: true},
		DeleteBackend{ID: "std-1"},
		ReportVolumes{Host: "host0000000001", Epoch: 2, At: at(12), Volumes: []VolumeReport{
			{Volume: "volume00000001", ProvisionedGB: 100, ReadOnly: ptr(true)}, {Volume: "volume00000002", Gone: true},
		}},
		SetHostRoles{Host: "host0000000001", Roles: []fleet.HostRole{fleet.RoleS3, fleet.RoleStorage}},
		Put[fleet.S3Key]{Record: sampleS3Key()},
		Delete[fleet.S3Key]{Account: "acme", ID: sampleS3Key().ID},
		PutNetworkSettings{sampleNetwork()},
		PutTLSFile{sampleTLSFile()},
		BeginRotation{CA: []byte("ca"), SealedKey: []byte("key"), Bridge: []byte("bridge"), At: at(13)},
		AdvanceRotation{From: fleet.RotationSpreads, BegunAt: at(13), At: at(14)},
	}
}

// sampleInventory is an inventory with every field that inventories got after the first version.
func sampleInventory() fleet.Inventory {
	inv := firstInventory("host0000000001")
	inv.PublicIP, inv.PortFrom, inv.PortTo = "192.0.2.1", 30_000, 39_999
	inv.Images = []string{"busybox"}
	inv.GPUs[0].PCI, inv.GPUs[0].Parent = "0000:3b:00.0", "GPU-1"
	inv.Conditions = []fleet.Condition{{Code: "disk_unlimited", Text: "The disk of pods has no limit.", Severe: true}}
	inv.RuntimeClass = "gvisor"
	return inv
}

// sampleNetwork are settings of private networks with every field set.
func sampleNetwork() fleet.NetworkSettings {
	s := fleet.DefaultNetworkSettings()
	s.PodMbps = 100
	return s
}

func sampleTLSFile() fleet.TLSFile {
	return fleet.TLSFile{Name: "certificates/ca/gantry.example/gantry.example.crt", Sealed: []byte("sealed"), UpdatedAt: at(1)}
}

func sampleMember() fleet.Member {
	return fleet.Member{
		ID: "member00000001", Name: "one", Address: "192.0.2.1:8443", NonVoter: true, Level: 2, Version: "1.2", JoinedAt: at(1),
		RemovedAt: at(2), Replaces: "member00000000",
	}
}

// sampleHost is a host with every field that hosts got after the first version.
func sampleHost() fleet.Host {
	return fleet.Host{
		ID: "host0000000001", Name: "n", MachineID: "m", JoinedAt: at(5), Eligibility: fleet.EligibilityDraining, KeepRunning: true,
		Labels: map[string]string{"rack": "7"}, Lineage: 2, PastBoots: []string{"b0"}, Hardware: "hw", Alarm: "look", AlarmAt: at(6),
		Leftovers: []fleet.Leftover{{Pod: "pod00000000001", Incarnation: 3}},
	}
}

// laterSamples holds what was not there in the first version.
func laterSamples() []sample {
	var out []sample
	for _, cmd := range laterCommands() {
		out = append(out, sample{cmd: cmd})
	}
	const second = "-2"
	prices, pod := samplePrices(), samplePod()
	cat := catalog()
	cat.GPUs[0].Contributed, cat.Storage = true, &prices
	inv := firstInventory("host0000000001")
	inv.PublicIP, inv.PortFrom, inv.PortTo = "192.0.2.1", 30_000, 39_999
	moving := pod
	moving.Moving = true
	pinned := pod
	pinned.Image = pinned.Spec.Image
	role := token("t3")
	role.Role, role.NonVoter, role.Replaces = fleet.TokenScheduler, true, "member00000001"
	const third = "-3"
	left := sampleHost()
	left.Leftovers[0].Gone = true
	_, ceph, local := sampleBackends()
	used := local
	used.Used = true
	mounts, roles := sampleInventory(), sampleHost()
	mounts.Volumes, roles.Roles = []fleet.BackendKind{fleet.BackendCeph, fleet.BackendNFS}, []fleet.HostRole{fleet.RoleS3}
	signed := sampleInventory()
	signed.Certificate = fleet.NodeCertificate{CA: "aa", Trusts: []string{"aa", "bb"}, EndsAt: at(12)}
	joined, linked, placed := sampleInventory(), sampleHost(), samplePod()
	joined.Tunnel, linked.Tunnel = hostTunnel("host0000000001"), netip.MustParseAddr("100.127.0.1")
	joined.Tunnel.UserSpace, joined.Tunnel.Plain = true, netip.MustParseAddr("2001:db8::1")
	evicted, promised, reserved, keyed := sampleHost(), samplePod(), samplePod(), samplePod()
	keyed.Spec.Ports, keyed.Spec.HTTP = []fleet.Port{{Number: 8080, Protocol: "http"}}, []fleet.HTTPSetting{{Port: 8080, Keyed: true, Most: 60}}
	evicted.Drain = &fleet.Drain{Since: at(5), Reason: "new fans", Deadline: at(7)}
	promised.Spec.Movable = true
	reserved.Target = &fleet.Reservation{
		Host: "host0000000002", GPUs: []string{"g"}, Need: fleet.Resources{MilliCPU: 1, MemoryMB: 2, DiskGB: 3}, Mappings: pod.Mappings,
	}
	placed.Overlays = []fleet.OverlayPlace{{Overlay: "account-acme", Addr: netip.MustParseAddr("10.64.0.2"), On: true}}
	told, asked, waiting, worker := sampleInventory(), token("t4"), samplePod(), samplePod()
	waiting.Waiting, worker.Owner = at(6), anEndpoint
	ready := worker
	ready.Release, ready.Ready = 3, at(7)
	frozen := ready
	frozen.Frozen = at(8)
	asked.Request, asked.Joined = []byte("request"), "host0000000001"
	told.Digest = "1:abc"
	wired, woven := sampleInventory(), samplePod()
	wired.Fabric = fleet.Fabric{Mode: fleet.FabricFunctions, Ports: []fleet.FabricPort{{
		Device: "mlx5_0", Port: 1, Netdev: "ib0", Link: fleet.LinkInfiniBand, State: fleet.PortActive, Mbps: 400_000, Subnet: "fe80:0000:0000:0000",
		GUID: "b8ce:f603:0011:2233", Functions: 8,
	}}}
	woven.Fabric = fleet.FabricRoCE
	wired.Tunnel = fleet.HostTunnel{PublicKey: hostTunnel("host0000000001").PublicKey, MTU: 9000}
	return append(out,
		sample{"-fabric", UpdateInventory{Host: "host0000000001", Epoch: 2, Inventory: wired, At: at(11)}},
		sample{"-fabric", CreatePods{Pods: []NewPod{{Pod: woven, HostEpoch: 1}}}},
		sample{"-once", Put[fleet.AccountSecret]{Record: fleet.AccountSecret{Account: "acme", Name: "HF_TOKEN"}, Once: sampleOnce()}},
		sample{"-once", Put[fleet.S3Key]{Record: sampleS3Key(), Once: sampleOnce()}},
		sample{"-drain", SetHostEligibility{
			Host: "host0000000001", Eligibility: fleet.EligibilityDraining, KeepRunning: true, At: at(5), Reason: "new fans", Deadline: at(7),
		}},
		sample{"-drain", JoinHost{Token: "t1", Hash: []byte("h"), Host: evicted, At: at(1)}},
		sample{"-movable", CreatePods{Pods: []NewPod{{Pod: promised, HostEpoch: 1}}}},
		sample{"-http", CreatePods{Pods: []NewPod{{Pod: keyed, HostEpoch: 1}}}},
		sample{"-owned", CreatePods{Pods: []NewPod{{Pod: worker, HostEpoch: 1}, {Pod: promised, HostEpoch: 2}}}},
		sample{"-owned", ActPod{Account: "acme", Pod: pod.ID, Action: fleet.ActionStop, At: at(5), Owner: worker.Owner}},
		sample{"-target", CreatePods{Pods: []NewPod{{Pod: reserved, HostEpoch: 1}}}},
		sample{"-to", MovePod{Pod: "pod00000000001", Rev: 3, At: at(10), To: &Binding{
			Host: "host0000000002", HostEpoch: 1, GPUs: []string{"g"}, HourlyRate: 8, Need: &fleet.Resources{MilliCPU: 1, MemoryMB: 2, DiskGB: 3},
		}}},
		sample{"-digest", UpdateInventory{Host: "host0000000001", Epoch: 2, Inventory: told, At: at(11)}},
		sample{"-brief", ConnectHost{
			Host: "host0000000001", MachineID: "m", BootID: "b", Generation: 7, Inventory: fleet.Inventory{Digest: "1:abc"}, At: at(2), Brief: true,
		}},
		sample{"-certificate", UpdateInventory{Host: "host0000000001", Epoch: 2, Inventory: signed, At: at(11)}},
		sample{"-tunnel", UpdateInventory{Host: "host0000000001", Epoch: 2, Inventory: joined, At: at(11)}},
		sample{"-tunnel", JoinHost{Token: "t1", Hash: []byte("h"), Host: linked, At: at(1)}},
		sample{"-overlays", CreatePods{Pods: []NewPod{{Pod: placed, HostEpoch: 1}}}},
		sample{"-egress", UpdateAccount{Account: "acme", Egress: ptr(fleet.EgressNone)}},
		sample{"-limits", UpdateAccount{Account: "acme", Limits: map[string]*int64{"pods": ptr(int64(5)), "gpus": nil}}},
		sample{"-limits", PutAccount{fleet.Account{ID: "acme", Name: "Acme", CreatedAt: at(0), Limits: fleet.Limits{"pods": 5, "gpus": 1}}}},
		sample{"-egress", PutAccount{fleet.Account{ID: "acme", Name: "Acme", CreatedAt: at(0), Egress: fleet.EgressNone}}},
		sample{"-money", UpdateAccount{Account: "acme", SpendLimit: ptr(20 * fleet.Dollar), LowBalance: ptr(fleet.Money(-1))}},
		sample{"-money", PutAccount{fleet.Account{
			ID: "acme", Name: "Acme", CreatedAt: at(0), SpendLimit: ptr(20 * fleet.Dollar), LowBalance: ptr(50 * fleet.Dollar),
		}}},
		sample{cmd: NoteBalances{Accounts: []fleet.AccountID{"acme"}, At: at(9)}},
		sample{cmd: RecordAudit{With: true, Line: fleet.AuditLine{
			At: at(9), Account: "acme", Key: "k1", KeyName: "ci", Operator: true, Operation: "createPod", Object: "pod00000000001", Face: "v2",
			Address: "192.0.2.1", Status: 201, Number: 7,
		}}},
		sample{cmd: PurgeAudit{Before: at(7), Limit: 10, At: at(8)}},
		sample{"-webhook", UpdateAccount{Account: "acme", Webhook: &fleet.AccountWebhook{
			URL: "https://example.com/events", Kinds: []fleet.EventKind{fleet.EventPod}, Key: []byte("sealed"),
		}}},
		sample{"-webhook", PutAccount{fleet.Account{ID: "acme", Name: "Acme", CreatedAt: at(0), Webhook: &fleet.AccountWebhook{
			URL: "https://example.com/events", Kinds: []fleet.EventKind{fleet.EventPod}, Key: []byte("sealed"),
		}}}},
		sample{cmd: NoteWebhooks{Done: fleet.EventPlace{Lineage: 1, Index: 7, Seq: 2}, Accounts: map[fleet.AccountID]fleet.WebhookState{
			"acme": {Place: fleet.EventPlace{Lineage: 1, Index: 9, Seq: 1}, At: at(9), Error: "the answer was status 500"},
		}}},
		sample{cmd: JoinGateway{Token: "gt", Hash: []byte("hash of gt"), Request: make([]byte, 32), At: at(9), Gateway: fleet.Gateway{
			ID: "gw1", Name: "edge-1", Address: "192.0.2.9:8444", DataCenter: "dc-1", JoinedAt: at(9), Draining: at(9),
		}}},
		sample{cmd: DrainGateway{ID: "gw1", Draining: true, At: at(9)}},
		sample{cmd: RemoveGateway{ID: "gw1"}},
		sample{cmd: PutPerson{Person: samplePerson(), End: true, Keep: "s1"}},
		sample{cmd: BeginSession{Session: fleet.Session{
			ID: "s1", Person: "p1", Hash: []byte("hash of s1"), Account: "acme", CreatedAt: at(9), ExpiresAt: at(99), Address: "192.0.2.7",
		}, Revision: 1, Step: 8, Subject: "https://id.example.com 1"}},
		sample{cmd: ChooseAccount{Session: "s1", Account: "acme"}},
		sample{cmd: EndSessions{Person: "p1", Session: "s1"}},
		sample{cmd: DeletePerson{ID: "p1"}},
		sample{"-person", PutKey{fleet.Key{ID: "k9", Account: "acme", Name: "login", Hash: []byte("h9"), CreatedAt: at(9), Person: "p1", Device: true}}},
		sample{"-person", RecordAudit{Line: fleet.AuditLine{At: at(9), Account: "acme", Key: "s1", Operation: "createPod", Face: "v2", Person: "p1"}}},
		sample{cmd: PutModel{sampleModel()}},
		sample{cmd: DeleteModel{ID: "draw"}},
		sample{cmd: HoldCredit{fleet.CreditHold{
			ID: "hold-1", Account: "other", Model: "draw", Owner: "acme", Price: sampleModel().Price, Job: [16]byte{1, 2}, At: at(9),
		}}},
		sample{cmd: SettleHolds{Holds: []SettledHold{{ID: "hold-1", Cost: fleet.Dollar}}, At: at(9)}},
		sample{cmd: PutObjectStore{sampleStore()}},
		sample{cmd: KeepFiles{Files: []fleet.ResultFile{resultFile("f1", 10)}}},
		sample{cmd: DropFiles{Files: []fleet.ResultFile{resultFile("f1", 10)}}},
		sample{"-underlay", PutDataCenter{fleet.DataCenter{ID: "dc-1", Name: "One", Region: "EU", Underlay: fleet.UnderlayPrivate}}},
		sample{"-ceph", PutBackend{Backend: ceph}},
		sample{"-local", PutBackend{Backend: local}},
		sample{"-used", PutBackend{Backend: used}},
		sample{"-force", DeleteBackend{ID: "std-1", Force: true}},
		sample{second, CreateVolume{Volume: storedVolume()}},
		sample{second, UpdateInventory{Host: "host0000000001", Epoch: 2, Inventory: mounts, At: at(11)}},
		sample{"-roles", JoinHost{Token: "t1", Hash: []byte("h"), Host: roles, At: at(1)}},
		sample{third, JoinHost{Token: "t1", Hash: []byte("h"), Host: left, At: at(1)}},
		sample{second, PurgeOnce{Before: at(7), Limit: 10}},
		sample{third, PurgeOnce{Before: at(7), Limit: 10, At: at(8)}},
		sample{second, PurgePods{Pods: []fleet.PodID{pod.ID}, Before: at(9), At: at(10)}},
		sample{second, PurgeUsage{Before: at(7), Limit: 10, At: at(8)}},
		sample{second, PurgeHosts{Before: at(7), At: at(8)}},
		sample{cmd: CordonGPU{Host: "host0000000001", GPU: "GPU-1", Reason: "RMA 4711", At: at(9)}},
		sample{cmd: OpenGPU{Host: "host0000000001", GPU: "GPU-1", Forget: true}},
		sample{"-waiting", CreatePods{Pods: []NewPod{{Pod: waiting, HostEpoch: 1}}}},
		sample{"-request", PutToken{Token: asked, At: at(0)}},
		sample{"-request", JoinHost{Token: "t1", Hash: []byte("h"), Host: sampleHost(), At: at(1), Request: []byte("request")}},
		sample{"-request", JoinMember{Token: "t2", Hash: []byte("h"), Member: sampleMember(), At: at(1), Request: []byte("request")}},
		sample{cmd: SuspendAccount{Account: "acme", Reason: "unpaid", At: at(9), Resume: true}},
		sample{cmd: NoteBackup{SavedAt: at(8), At: at(9)}},
		sample{"-suspended", PutAccount{fleet.Account{
			ID: "acme", Name: "Acme", CreatedAt: at(0), Suspended: &fleet.Suspension{Reason: "unpaid", At: at(9)},
		}}},
		sample{cmd: PutPlacement{fleet.Placement{KeepPercent: 75}}},
		sample{cmd: Put[fleet.Endpoint]{Record: sampleEndpoint(), Once: sampleOnce()}},
		sample{"-signed", Put[fleet.Endpoint]{Record: signedEndpoint()}},
		sample{"-balanced", Put[fleet.Endpoint]{Record: balancedEndpoint()}},
		sample{"-models", Put[fleet.Endpoint]{Record: modelEndpoint()}},
		sample{"-models", CreatePods{Pods: []NewPod{{Pod: modelWorker(), HostEpoch: 1}}}},
		sample{"-models", UpdateInventory{Host: "host0000000001", Epoch: 2, Inventory: modelInventory(), At: at(11)}},
		sample{cmd: Delete[fleet.Endpoint]{Account: "acme", ID: "endpoint000001"}},
		sample{cmd: func() CreateCluster { c := clusterOf(theCluster, "p1", "p2"); c.Once = sampleOnce(); return c }()},
		sample{cmd: Put[fleet.Cluster]{Record: func() fleet.Cluster {
			c := clusterOf(theCluster, "p1", "p2").Cluster
			c.Rev, c.Template = 3, "template000001"
			return c
		}(), Once: sampleOnce()}},
		sample{cmd: Delete[fleet.Cluster]{Account: "acme", ID: string(theCluster), At: at(9)}},
		sample{"-failure", Put[fleet.Cluster]{Record: func() fleet.Cluster {
			c := clusterOf(theCluster, "p1", "p2").Cluster
			c.OnFailure, c.Tries, c.RestartedAt = fleet.OnFailureRestart, 4, at(8)
			return c
		}()}},
		sample{cmd: RestartCluster{Account: "acme", ID: theCluster, Rev: 3, At: at(9), Auto: true, Starts: []MemberStart{{
			Pod: "p1", Rev: 4, Bind: Binding{Host: "host0000000001", HostEpoch: 1, GPUs: []string{"GPU-1"}, HourlyRate: 8},
		}}}},
		sample{cmd: StopCluster{Account: "acme", ID: theCluster, At: at(9)}},
		sample{"-ready", CreatePods{Pods: []NewPod{{Pod: ready, HostEpoch: 1}}}},
		sample{"-evicts", CreatePods{Pods: []NewPod{{Pod: frozen, HostEpoch: 1, Evict: []fleet.PodID{"p2"}}}}},
		sample{"-evicts", ActPod{Account: "acme", Pod: pod.ID, Action: fleet.ActionStart, At: at(5), Bind: &Binding{
			Host: "host0000000001", HostEpoch: 1, HourlyRate: 8, Evict: []fleet.PodID{"p2"},
		}}},
		sample{cmd: FreezeWorker{Pod: pod.ID, Thaw: true, At: at(9)}},
		sample{cmd: EndPods{Pods: []fleet.PodID{pod.ID}, At: at(9)}},
		sample{"-at", Delete[fleet.S3Key]{Account: "acme", ID: "id", At: at(9)}}, sample{"-at", Delete[fleet.Registry]{Account: "acme", ID: "id", At: at(9)}},
		sample{"-at", Delete[fleet.Endpoint]{Account: "acme", ID: "id", At: at(9)}}, sample{"-at", Delete[fleet.Template]{Account: "acme", ID: "id", At: at(9)}},
		sample{"-rev", Put[fleet.Registry]{Record: fleet.Registry{ID: "id", Account: "acme", Rev: 2, CreatedAt: at(1)}}},
		sample{"-at", Delete[fleet.AccountSecret]{Account: "acme", ID: "id", At: at(9)}},
		sample{"-spot", CreatePods{Pods: []NewPod{{Pod: spotPod(), HostEpoch: 1}}}},
		sample{"-spot", ActPod{Account: "acme", Pod: pod.ID, Action: fleet.ActionStart, At: at(5), Bid: 7, Bind: &Binding{
			Host: "host0000000001", HostEpoch: 1, HourlyRate: 7,
		}}},
		sample{"-spot", UpdatePod{Account: "acme", Pod: pod.ID, Rev: 4, Spec: spotPod().Spec, Locked: true, HourlyRate: 8, At: at(5)}},
		sample{"-spot", PutGPUType{fleet.GPUType{ID: h100, Name: "H100", Manufacturer: "NVIDIA", MemoryGB: 80, Secure: 2, SecureSpot: 1, Community: 4, CommunitySpot: 3}}},
		sample{"-notice", PutPlacement{fleet.Placement{KeepPercent: 75, NoticeSeconds: 60}}},
		sample{cmd: ReadyWorkers{Pods: []fleet.PodID{pod.ID}, At: at(9)}},
		sample{"-cordons", JoinHost{Token: "t1", Hash: []byte("h"), Host: cordonedHost(), At: at(1)}},
		sample{cmd: TickClock{
			At: at(9), Leap: 10 * time.Minute, Confirmed: true, Operator: true, Doubted: true, Boot: "5f0c", Up: 3 * time.Hour,
		}},
		sample{third, Bootstrap{ClusterID: "c", CA: []byte("ca"), SealedCAKey: []byte("key"), Catalog: cat, At: at(0), Level: 1}},
		sample{second, PutToken{Token: role, At: at(0)}},
		sample{second, JoinHost{Token: "t1", Hash: []byte("h"), Host: sampleHost(), At: at(1)}},
		sample{third, ConnectHost{
			Host: "host0000000001", MachineID: "m", BootID: "b", Generation: 7, Inventory: inv, At: at(2), Hardware: "hw", Lineage: 3,
			Pods: []HostPod{{
				Pod: pod.ID, Incarnation: 2, Goal: fleet.GoalRun, Ended: true, GPUs: []string{"g"},
				Need: fleet.Resources{MilliCPU: 1, MemoryMB: 2, DiskGB: 3}, Mappings: pod.Mappings,
			}},
		}},
		sample{third, CreatePods{Pods: []NewPod{{Pod: moving, HostEpoch: 1}}}},
		sample{"-image", CreatePods{Pods: []NewPod{{Pod: pinned, HostEpoch: 1}}}},
		sample{second, Bootstrap{ClusterID: "c", CA: []byte("ca"), SealedCAKey: []byte("key"), Catalog: cat, At: at(0)}},
		sample{second, PutDataCenter{fleet.DataCenter{
			ID: "dc-1", Name: "One", Region: "EU", GlobalNetwork: true, Country: "RO", Compliance: []string{"ISO27001"},
		}}},
		sample{second, PutCatalog{cat}},
		sample{second, PutAccount{fleet.Account{
			ID: "acme", Name: "Acme", CreatedAt: at(0), Prepaid: true, Quotas: &fleet.Quotas{Minute: 1, Hour: 2, Day: 3},
		}}},
		sample{second, PutKey{fleet.Key{
			ID: "k1", Account: "acme", Name: "ci", Hint: "gk_abcdef", Hash: []byte("h"), CreatedAt: at(0), ExpiresAt: at(9),
			Can: map[fleet.Group]fleet.Access{fleet.GroupPods: fleet.AccessWrite}, Disabled: true, Invoke: []string{fleet.InvokeAll},
		}}},
		sample{second, ConnectHost{Host: "host0000000001", MachineID: "m", BootID: "b", Generation: 7, Inventory: inv, At: at(2)}},
		sample{second, CreatePods{Pods: []NewPod{{Pod: pod, HostEpoch: 1}}, Once: sampleOnce()}},
		sample{second, ActPod{Account: "acme", Pod: pod.ID, Rev: 4, Action: fleet.ActionStart, At: at(5), Bind: &Binding{
			Host: "host0000000001", HostEpoch: 1, GPUs: []string{"g"}, HourlyRate: 8, Mappings: pod.Mappings,
			Need: &fleet.Resources{MilliCPU: 1, MemoryMB: 2, DiskGB: 3},
		}}},
	)
}

// sampleModel is a public model of the endpoint ep-1.
func sampleModel() fleet.Model {
	return fleet.Model{
		ID: "draw", Endpoint: "ep-1", Owner: "acme", Description: "Draws.", Schema: []byte(`{"type":"object"}`), Closed: true, CreatedAt: at(1),
		Price:  fleet.ModelPrice{Request: fleet.Dollar, Unit: fleet.Dollar / 2, Counted: "images", MaxUnits: 8},
		Limits: fleet.ModelLimits{Jobs: 3},
	}
}

// sampleStore has room for 100 bytes of an account's files, and 150 in all.
func sampleStore() fleet.ObjectStore {
	return fleet.ObjectStore{
		Endpoint: "https://s3.example.com", Region: "eu-1", Bucket: "results", Prefix: "models/", AccessKey: "key", Sealed: []byte("sealed"),
		AccountBytes: 100, AllBytes: 150,
	}
}

// resultFile is a file of acme's that expires in 60 seconds.
func resultFile(id string, bytes int64) fleet.ResultFile {
	return fleet.ResultFile{ID: id, Account: "acme", Bytes: bytes, Expires: at(60)}
}

// spotPod is an interruptible pod that was interrupted.
func spotPod() fleet.Pod {
	p := samplePod()
	p.Spec.Spot = &fleet.Spot{Bid: 5, Return: true}
	p.Spec.StopAfter, p.Spec.TerminateAfter = at(90), at(99)
	p.Interrupted, p.Notice = at(9), fleet.DefaultNotice
	return p
}

// cordonedHost is a host with a GPU that an operator took out of service.
func cordonedHost() fleet.Host {
	h := sampleHost()
	h.Inventory.GPUs = []fleet.GPU{{UUID: "GPU-1", Type: h100, MemoryMB: 80_000, PCI: "0000:3b:00.0", Cordoned: "RMA 4711"}}
	h.GPUCordons = []fleet.GPUCordon{{UUID: "GPU-1", Reason: "RMA 4711", At: at(9), Type: h100, PCI: "0000:3b:00.0"}}
	return h
}

func samplePerson() fleet.Person {
	return fleet.Person{
		ID: "p1", Login: "ada@example.com", CreatedAt: at(9), Memberships: []fleet.Membership{{Account: "acme", Role: fleet.RoleOwner}},
		Password: "$argon2id$", OnceUntil: at(99), TOTP: []byte("sealed"), TOTPStep: 7, Subject: "https://id.example.com 1", Disabled: true, Revision: 1,
	}
}
