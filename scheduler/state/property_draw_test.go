package state

import (
	"fmt"
	"time"

	"pgregory.net/rapid"

	"gantry/fleet"
)

// pick draws one of some identifiers.
func pick[T ~string](t *rapid.T, label string, from ...T) T {
	return rapid.SampledFrom(from).Draw(t, label)
}

// drawOnce draws an idempotency key now and then, of few, under one of two requests.
func drawOnce(t *rapid.T) *fleet.Once {
	if rapid.IntRange(0, 2).Draw(t, "once") > 0 {
		return nil
	}
	return &fleet.Once{Key: pick(t, "once key", "one", "two"), Fingerprint: []byte(pick(t, "request", "x", "x", "y"))}
}

// enrich gives a pod to create some of what pods can have.
func (w *world) enrich(t *rapid.T, p *fleet.Pod) {
	if rapid.IntRange(0, 2).Draw(t, "plain") == 0 {
		return
	}
	drawReferences(t, &p.Spec)
	p.Spec.GlobalNetworking, p.Spec.Movable = rapid.Bool().Draw(t, "networked"), rapid.IntRange(0, 3).Draw(t, "movable") > 0
	p.Spec.Ports = drawPorts(t)
	p.Mappings = w.drawMappings(t, p.Host, p.Spec.Ports)
	if rapid.IntRange(0, 2).Draw(t, "keeps data") == 0 {
		size := rapid.SampledFrom([]int{10, 300}).Draw(t, "size")
		p.Spec.Persistent = &fleet.PersistentMount{SizeGB: size, Path: "/data"}
		p.Need.DiskGB += int64(size)
	}
	if rapid.IntRange(0, 4).Draw(t, "has a volume") == 0 {
		p.Spec.Network = &fleet.NetworkMount{Volume: pick[fleet.VolumeID](t, "volume", "vol-1", "vol-2", "vol-3"), Path: "/net"}
	}
}

func drawReferences(t *rapid.T, spec *fleet.PodSpec) {
	spec.Registry = pick[fleet.RegistryID](t, "registry", "", "", "reg-1", "reg-2")
	spec.Template = pick[fleet.TemplateID](t, "template", "", "", "tpl-1", "tpl-2")
	if name := pick(t, "named secret", "", "", "token", "other"); name != "" {
		spec.Env = map[string]string{"T": "{{ GANTRY_SECRET_" + name + " }}"}
	}
}

func drawPorts(t *rapid.T) (ports []fleet.Port) {
	numbers := rapid.SampledFrom([]int{22, 23, 30_001, 70_000, 70_001})
	for _, n := range rapid.SliceOfNDistinct(numbers, 0, 2, rapid.ID).Draw(t, "tcp ports") {
		ports = append(ports, fleet.Port{Number: n, Protocol: "tcp"})
	}
	return ports
}

// drawMappings draws public ports, of which there are few, so that they meet; mostly where the host
// publishes some.
func (w *world) drawMappings(t *rapid.T, host fleet.HostID, ports []fleet.Port) (mappings []fleet.PortMapping) {
	size := 0
	w.view(func(v *View) {
		if h, ok := v.Host(host); ok {
			size = portRange(&h)
		}
	})
	if (size > 0) == (rapid.IntRange(0, 7).Draw(t, "wrongly mapped") == 0) {
		return nil
	}
	for _, p := range ports {
		mappings = append(mappings, fleet.PortMapping{Private: p.Number, Public: rapid.IntRange(30_000, 30_005).Draw(t, "public")})
	}
	return mappings
}

// drawUpdate draws an update of a pod as it is, or of one that is not there.
func (w *world) drawUpdate(t *rapid.T, id fleet.PodID, now time.Time) UpdatePod {
	c := UpdatePod{Account: "acme", Pod: id, At: now, Locked: rapid.IntRange(0, 5).Draw(t, "lock") == 0, Restart: rapid.Bool().Draw(t, "restarts")}
	w.view(func(v *View) {
		if p, ok := v.Pod(id); ok {
			c.Rev, c.Spec, c.Need, c.Mappings = p.Rev, p.Spec, p.Need, p.Mappings
		}
	})
	if rapid.Bool().Draw(t, "refers to others") {
		drawReferences(t, &c.Spec)
	}
	if rapid.IntRange(0, 2).Draw(t, "other network") == 0 {
		c.Spec.GlobalNetworking, c.Spec.Name = !c.Spec.GlobalNetworking, pick(t, "name", "one", "two")
	}
	if rapid.Bool().Draw(t, "other ports") {
		c.Spec.Ports = drawPorts(t)
		c.Mappings = w.drawMappings(t, w.hostOf(id), c.Spec.Ports)
	}
	if m := c.Spec.Persistent; m != nil {
		more := rapid.SampledFrom([]int{-1, 0, 50, 400}).Draw(t, "growth")
		c.Spec.Persistent = &fleet.PersistentMount{SizeGB: m.SizeGB + more, Path: m.Path}
		c.Need.DiskGB += int64(more)
	}
	c.Need.MilliCPU += rapid.SampledFrom([]int64{-500, 0, 3000}).Draw(t, "more CPU")
	return c
}

// drawBinding draws where a pod starts: mostly on the host where it was, with as many GPUs as it wants.
func (w *world) drawBinding(t *rapid.T, id fleet.PodID, host fleet.HostID) *Binding {
	var p fleet.Pod
	w.view(func(v *View) { p, _ = v.Pod(id) })
	if p.Host != "" && rapid.IntRange(0, 3).Draw(t, "at home") > 0 {
		host = p.Host
	}
	n := 0
	if p.Spec.GPU != nil && rapid.IntRange(0, 7).Draw(t, "wrong count") > 0 {
		n = p.Spec.GPU.Count
	}
	gpus := rapid.SliceOfNDistinct(rapid.IntRange(0, 3), n, n, rapid.ID).Draw(t, "bound GPUs")
	return &Binding{
		Host: host, HostEpoch: w.epochOf(host), GPUs: podOn(id, host, gpus...).GPUs,
		Mappings: w.drawMappings(t, host, p.Spec.Ports), Evict: w.drawEvicted(t, host),
	}
}

// drawEvicted draws frozen workers of a host, if it has some, or a pod that may be none.
func (w *world) drawEvicted(t *rapid.T, host fleet.HostID) (out []fleet.PodID) {
	w.view(func(v *View) { out = sortedKeys(v.Frozen()[host]) })
	switch rapid.IntRange(0, 9).Draw(t, "evicted") {
	case 0:
		return []fleet.PodID{"p1"}
	case 1, 2, 3, 4:
		return out
	}
	return nil
}

// epochOf returns the session of a host; 0 when it is not there.
func (w *world) epochOf(host fleet.HostID) (epoch uint64) {
	w.view(func(v *View) {
		h, _ := v.Host(host)
		epoch = h.Epoch
	})
	return epoch
}

// hostOf returns the host of a pod, if there is one.
func (w *world) hostOf(id fleet.PodID) (host fleet.HostID) {
	w.view(func(v *View) {
		p, _ := v.Pod(id)
		host = p.Host
	})
	return host
}

// drawOwned draws a command on what accounts own beside pods.
func (w *world) drawOwned(t *rapid.T, now time.Time) Command {
	account := pick[fleet.AccountID](t, "owner", "acme", "acme", "acme", "other")
	template := pick[fleet.TemplateID](t, "template", "tpl-1", "tpl-2")
	registry := pick[fleet.RegistryID](t, "registry", "reg-1", "reg-2")
	switch rapid.IntRange(0, 17).Draw(t, "owned") {
	case 0, 1:
		in := fleet.Template{ID: template, Account: account, Registry: registry, Public: rapid.Bool().Draw(t, "public"), CreatedAt: now}
		w.view(func(v *View) {
			if old, ok := Find[fleet.Template](v, template); ok && rapid.Bool().Draw(t, "replaces") {
				in.Rev = old.Rev
			}
		})
		if rapid.Bool().Draw(t, "without a credential") {
			in.Registry = ""
		}
		return Put[fleet.Template]{Record: in, Once: drawOnce(t)}
	case 2:
		return Delete[fleet.Template]{Account: account, ID: string(template)}
	case 3:
		in := fleet.Registry{ID: registry, Account: account, Sealed: []byte("s"), CreatedAt: now}
		w.view(func(v *View) {
			if old, ok := Find[fleet.Registry](v, registry); ok && rapid.Bool().Draw(t, "replaces") {
				in.Rev = old.Rev
			}
		})
		return Put[fleet.Registry]{Record: in, Once: drawOnce(t)}
	case 4:
		return Delete[fleet.Registry]{Account: account, ID: string(registry)}
	case 5:
		return drawS3Key(t, account, now)
	case 6, 7:
		return w.drawVolume(t, account, now)
	case 8:
		return SetSSHKeys{Account: account, Keys: rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b"}), 0, 2).Draw(t, "keys")}
	case 9:
		return SetTemplateSource{Template: template, Source: fleet.SourceOfficial}
	case 11:
		name := pick(t, "secret", "token", "other")
		return Put[fleet.AccountSecret]{Record: fleet.AccountSecret{Account: account, Name: name, Sealed: []byte("s"), CreatedAt: now, UpdatedAt: now}}
	case 12:
		return Delete[fleet.AccountSecret]{Account: account, ID: pick(t, "secret", "token", "other")}
	case 10:
		return PurgeOnce{Before: now.Add(-3 * time.Second)}
	case 13:
		return RecordAudit{Line: fleet.AuditLine{At: now, Account: account, Operation: "o"}, With: rapid.Bool().Draw(t, "with")}
	case 14:
		return PurgeAudit{Before: now.Add(-3 * time.Second), Limit: 2, At: now}
	case 15:
		return UpdateAccount{Account: account, Webhook: &fleet.AccountWebhook{URL: pick(t, "webhook", "", "https://x"), Kinds: []fleet.EventKind{fleet.EventPod}}}
	case 16:
		place := fleet.EventPlace{Index: rapid.Uint64Range(0, 9).Draw(t, "place")}
		return NoteWebhooks{Done: place, Accounts: map[fleet.AccountID]fleet.WebhookState{account: {Place: place, At: now}}}
	}
	return w.drawKey(t, account, now)
}

// drawKey draws a command on an account itself and on its keys.
func (w *world) drawKey(t *rapid.T, account fleet.AccountID, now time.Time) Command {
	key := pick[fleet.KeyID](t, "key", "k1", "k2")
	switch rapid.IntRange(0, 8).Draw(t, "of the account") {
	case 8:
		return w.drawPerson(t, account, now)
	case 7:
		return BeginRotation{CA: []byte(pick(t, "CA", "1", "2", "ca")), SealedKey: []byte("k"), Bridge: []byte("b"), At: now}
	case 6:
		var c Cluster
		w.view(func(v *View) { c, _ = v.Cluster() })
		cmd := AdvanceRotation{From: pick(t, "step", fleet.RotationSpreads, fleet.RotationRenews), BegunAt: now, At: now}
		if c.Rotation != nil {
			cmd.BegunAt = c.Rotation.BegunAt
		}
		return cmd
	case 5:
		name := pick(t, "file", "a/1", "a/2", "b")
		return PutTLSFile{fleet.TLSFile{Name: name, Sealed: []byte(pick(t, "sealed", "", "x", "y")), UpdatedAt: now}}
	case 0:
		return PutKey{fleet.Key{ID: key, Account: account, Hash: []byte(pick(t, "hash", "x", "y"))}}
	case 1:
		return DeleteKey{Account: account, Key: key}
	case 2:
		return UpdateKey{Account: account, Key: key, Disabled: ptr(rapid.Bool().Draw(t, "disabled"))}
	case 3:
		return TouchKeys{Used: map[fleet.KeyID]time.Time{key: now}}
	}
	return UpdateAccount{Account: account, Prepaid: ptr(rapid.Bool().Draw(t, "prepaid")), Quotas: &fleet.Quotas{Day: rapid.IntRange(0, 1).Draw(t, "quota")}}
}

// drawOperator draws a command of operators.
func drawOperator(t *rapid.T, now time.Time, step int) []Command {
	kind := pick(t, "GPU type", h100, "NVIDIA A40")
	switch rapid.IntRange(0, 7).Draw(t, "of operators") {
	case 0:
		return []Command{PutGPUType{fleet.GPUType{ID: kind, Name: "named"}}}
	case 1:
		return []Command{DeleteGPUType{ID: kind}}
	case 2:
		return []Command{PutCPUFlavor{fleet.CPUFlavor{ID: pick(t, "flavor", "cpu3c", "cpu5c")}}}
	case 3:
		return []Command{DeleteCPUFlavor{ID: pick(t, "flavor", "cpu3c", "cpu5c")}}
	case 4:
		return []Command{PutStoragePrices{fleet.StoragePrices{ContainerDisk: fleet.Money(step)}}}
	case 5:
		return []Command{
			DeleteDataCenter{ID: pick[fleet.DataCenterID](t, "center", "dc-1", "dc-2")}, PutDataCenter{fleet.DataCenter{ID: "dc-2"}},
		}
	case 6:
		return []Command{SetHostCloud{
			Host: pick[fleet.HostID](t, "host", "host-a", "host-b", "host-c"), Cloud: pick(t, "tier", fleet.CloudSecure, fleet.CloudCommunity),
		}}
	}
	tok := token(fleet.TokenID(fmt.Sprintf("token-%d", step)))
	machine := pick(t, "machine", "machine-a", "machine-b", "machine-c", "machine-c")
	return []Command{
		PutToken{Token: tok, At: now},
		JoinHost{Token: tok.ID, Hash: tok.Hash, Host: fleet.Host{ID: "host-c", MachineID: machine, JoinedAt: now, Hardware: drawBoard(t, machine)}, At: now},
	}
}

// drawBoard draws what a machine tells of its main board.
func drawBoard(t *rapid.T, machine string) string {
	return pick(t, "board", "", "board-"+machine, "board-"+machine)
}
