package state

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"gantry/fleet"
)

// TestEveryFieldHasItsBound: a field is not what refuses a value at its bound, and is what refuses the next one, which writes nothing.
func TestEveryFieldHasItsBound(t *testing.T) {
	w := modelWorld(t)
	w.must(PutObjectStore{sampleStore()})
	try := func(cmd Command) error {
		before := w.hash()
		r := w.do(cmd)
		if r.Err != nil && !bytes.Equal(before, w.hash()) {
			t.Errorf("%T was refused and wrote", cmd)
		}
		return r.Err
	}
	text := func(n int) string { return strings.Repeat("x", n) }
	raw := func(n int) []byte { return make([]byte, n) }
	ids := func(n int) (out []fleet.PodID) {
		for i := range n {
			out = append(out, fleet.PodID(fmt.Sprintf("none%d", i)))
		}
		return out
	}
	account := func(change func(*UpdateAccount)) error {
		cmd := UpdateAccount{Account: "acme"}
		change(&cmd)
		return try(cmd)
	}
	webhook := func(url, key int) error {
		return account(func(c *UpdateAccount) {
			c.Webhook = &fleet.AccountWebhook{URL: text(url), Key: raw(key), Kinds: []fleet.EventKind{fleet.EventPod}}
		})
	}
	rotation := func(ca, key, bridge int) error {
		r := try(BeginRotation{CA: raw(ca), SealedKey: raw(key), Bridge: raw(bridge), At: at(5)})
		w.inTxn(at(5), func(tx *txn) { // the next may begin
			c := *tx.base.cluster.Get(tx.Txn, onlyKey)
			c.Rotation = nil
			tx.base.cluster.Put(tx.Txn, onlyKey, &c)
		})
		return r
	}
	inventoryOf := func(gpus int) error {
		inv := inventory("host-a")
		inv.GPUs = nil
		for i := range gpus {
			inv.GPUs = append(inv.GPUs, fleet.GPU{UUID: fmt.Sprint(i), Type: h100})
		}
		return try(UpdateInventory{Host: "host-a", Epoch: w.host("host-a").Epoch, Inventory: inv, At: at(6)})
	}
	backend := func(b fleet.Backend, change func(*fleet.Backend)) error {
		change(&b)
		return try(PutBackend{Backend: b})
	}
	options := func(n int) string { // that are allowed, and n bytes
		four := (n + 1) % 3
		return strings.TrimSuffix(strings.Repeat("ac,", (n+1-4*four)/3)+strings.Repeat("cto,", four), ",")
	}
	store := func(change func(*fleet.ObjectStore)) error {
		s := sampleStore()
		change(&s)
		return try(PutObjectStore{s})
	}
	file := func(change func(*fleet.ResultFile)) error {
		f := resultFile("f", 0)
		change(&f)
		return try(keeps(f))
	}
	of := func(change func(*fleet.Model)) error {
		m := model()
		change(&m)
		return try(PutModel{m})
	}
	made := 0 // things with an id of their own
	s3Key := func(change func(*fleet.S3Key)) error {
		made++
		k := sampleS3Key()
		k.ID = fmt.Sprintf("user_%027d", 100+made)
		change(&k)
		return try(Put[fleet.S3Key]{Record: k})
	}
	endpointOf := func(change func(*fleet.Endpoint)) error {
		made++
		e := endpoint(fleet.EndpointID(fmt.Sprintf("ep-of-%d", made)))
		change(&e)
		return try(Put[fleet.Endpoint]{Record: e})
	}
	links := func(change func(*fleet.NetworkSettings)) error {
		s := smallNetworks()
		change(&s)
		return checkNetworkSettings(&s)
	}
	const none = -1 << 62 // of a least value
	for _, b := range []struct {
		name, field string
		least, most int
		try         func(n int) error
	}{
		{"an account's own limit", "$.spendLimit", none, int(maxCredit), func(n int) error {
			return account(func(c *UpdateAccount) { c.SpendLimit = ptr(fleet.Money(n)) })
		}},
		{"a webhook's URL", "$.webhook", none, maxWebhookURL, func(n int) error { return webhook(n, 1) }},
		{"a webhook's key", "$.webhook", none, maxWebhookSealed, func(n int) error { return webhook(1, n) }},
		{"the next CA", "$.ca", 1, maxCA, func(n int) error { return rotation(n, 1, 1) }},
		{"its key", "$.ca", 1, maxCA, func(n int) error { return rotation(1, n, 1) }},
		{"its bridge", "$.ca", 1, maxCA, func(n int) error { return rotation(1, 1, n) }},
		{"why a host is drained", "$.reason", none, maxDrainReason, func(n int) error {
			return try(SetHostEligibility{Host: "host-a", Eligibility: fleet.EligibilityDraining, Reason: text(n), At: at(5)})
		}},
		{"an alarm", "$.text", none, maxAlarm, func(n int) error { return try(AlarmHost{Host: "host-a", Text: text(n), At: at(5)}) }},
		{"the main board", "$.hardware", none, maxID, func(n int) error { return checkHardware(text(n)) }},
		{"a host's generation", "$.generation", none, maxGeneration - 1, func(n int) error {
			return ConnectHost{Generation: uint64(n), BootID: "b", Inventory: inventory("host-a")}.check()
		}},
		{"a host's GPUs", "$.inventory.gpus", none, maxGPUs, inventoryOf},
		{"a lineage", "$.lineage", none, maxLineage, func(n int) error { return try(RestoreCluster{ID: "cluster", Member: member("m1"), Lineage: uint64(n)}) }},
		{"pods at once", "$.pods", 1, MaxPods, func(n int) error { return try(CreatePods{Pods: make([]NewPod, n)}) }},
		{"pods that end", "$.pods", none, MaxPods, func(n int) error { return try(EndPods{Pods: ids(n), At: at(5)}) }},
		{"workers that are ready", "$.pods", none, MaxPods, func(n int) error { return try(ReadyWorkers{Pods: ids(n), At: at(5)}) }},
		{"pods that make room", "$.evict", none, MaxPods, func(n int) (err error) {
			w.inTxn(at(5), func(tx *txn) { err = tx.evict("host-a", ids(n), &fleet.Pod{}, nil) })
			return err
		}},
		{"volumes of a report", "$.volumes", none, MaxVolumeReports, func(n int) error {
			return try(ReportVolumes{Host: "host-a", Epoch: w.host("host-a").Epoch, Volumes: make([]VolumeReport, n), At: at(5)})
		}},
		{"why an account is suspended", "$.reason", 1, maxSuspension, func(n int) error {
			return try(SuspendAccount{Account: "other", Reason: text(n), At: at(5)})
		}},
		{"a container disk", "$.disk", 0, maxDiskGB, func(n int) error { return checkDisks(&fleet.PodSpec{DiskGB: n}) }},
		{"a persistent disk", "$.mounts.persistent.size", 1, maxDiskGB, func(n int) error {
			return checkDisks(&fleet.PodSpec{Persistent: &fleet.PersistentMount{SizeGB: n}})
		}},
		{"a network volume", "$.size", fleet.VolumeLeastGB, fleet.VolumeMostGB, checkVolumeSize},
		{"the account of an audit line", "$.account", 1, maxAuditText, func(n int) error {
			return try(RecordAudit{Line: fleet.AuditLine{Account: fleet.AccountID(text(n)), At: at(5)}})
		}},
		{"a backend's secrets", "$.secrets", none, maxBackendSealed, func(n int) error {
			return backend(nfsBackend("b-std"), func(b *fleet.Backend) { b.Sealed = raw(n) })
		}},
		{"options of NFS", "$.nfs.options", none, maxOptions, func(n int) error {
			return backend(nfsBackend("b-std"), func(b *fleet.Backend) { b.NFS.Options = options(n) })
		}},
		{"an export", "$.nfs.export", 1, maxPath, func(n int) error {
			return backend(nfsBackend("b-new"), func(b *fleet.Backend) { b.NFS.Export = strings.Repeat("/", min(n, 1)) + text(max(0, n-1)) })
		}},
		{"a store's region", "$.region", 1, maxStoreText, func(n int) error { return store(func(s *fleet.ObjectStore) { s.Region = text(n) }) }},
		{"a store's prefix", "$.prefix", none, maxStoreText, func(n int) error { return store(func(s *fleet.ObjectStore) { s.Prefix = text(n) }) }},
		{"a store's secret", "$.secret", 1, maxWebhookSealed, func(n int) error { return store(func(s *fleet.ObjectStore) { s.Sealed = raw(n) }) }},
		{"an account's room", "$.accountGb", 1, int(maxStoreBytes), func(n int) error { return store(func(s *fleet.ObjectStore) { s.AccountBytes = int64(n) }) }},
		{"the room of all", "$.allGb", 1, int(maxStoreBytes), func(n int) error { return store(func(s *fleet.ObjectStore) { s.AllBytes = int64(n) }) }},
		{"a file", "$.files", 0, int(maxStoreBytes), func(n int) error { return file(func(f *fleet.ResultFile) { f.Bytes = int64(n) }) }},
		{"a file's id", "$.files", 1, maxID, func(n int) error { return file(func(f *fleet.ResultFile) { f.ID = text(n) }) }},
		{"files at once", "$.files", 1, maxFilesKept, func(n int) error { return try(keeps(slices.Repeat([]fleet.ResultFile{resultFile("f", 0)}, n)...)) }},
		{"files that go", "$.files", none, maxFilesKept, func(n int) error { return try(DropFiles{Files: make([]fleet.ResultFile, n)}) }},
		{"why a GPU is cordoned", "$.reason", 1, maxCordonReason, func(n int) error {
			return try(CordonGPU{Host: "host-b", GPU: "host-b-gpu-0", Reason: text(n), At: at(5)})
		}},
		{"holds that are settled", "$.holds", none, maxSettled, func(n int) error { return try(SettleHolds{Holds: make([]SettledHold, n), At: at(5)}) }},
		{"a model's description", "$.description", none, fleet.MaxModelText, func(n int) error { return of(func(m *fleet.Model) { m.Description = text(n) }) }},
		{"a model's schema", "$.inputSchema", none, fleet.MaxModelSchema, func(n int) error { return of(func(m *fleet.Model) { m.Schema = raw(n) }) }},
		{"the price of a unit", "$.price.unit", 1, int(fleet.MaxModelPrice), func(n int) error {
			if n == 0 { // goes with no units
				return fleet.Invalid("$.price.unit", "")
			}
			return of(func(m *fleet.Model) { m.Price.Unit = fleet.Money(n) })
		}},
		{"what is counted", "$.price.counted", 1, maxID, func(n int) error { return of(func(m *fleet.Model) { m.Price.Counted = text(n) }) }},
		{"a model's jobs", "$.limits.jobs", 1, fleet.MaxModelJobs, func(n int) error { return of(func(m *fleet.Model) { m.Limits.Jobs = n }) }},
		{"the range of tunnels", "$.tunnelRange", minTunnelBits, maxTunnelBits, func(n int) error {
			return links(func(s *fleet.NetworkSettings) {
				s.Tunnel = netip.PrefixFrom(netip.MustParseAddr("11.0.0.0"), n).Masked()
			})
		}},
		{"the port of WireGuard", "$.wireguardPort", 1, maxPort, func(n int) error { return links(func(s *fleet.NetworkSettings) { s.WireGuardPort = n }) }},
		{"the port of VXLAN", "$.vxlanPort", 1, maxPort, func(n int) error { return links(func(s *fleet.NetworkSettings) { s.VXLANPort = n }) }},
		{"a secret", "$.value", none, maxSealed, func(n int) error {
			return try(Put[fleet.AccountSecret]{Record: fleet.AccountSecret{Account: "acme", Name: "token", Sealed: raw(n), CreatedAt: at(2)}})
		}},
		{"an S3 key's name", "$.name", none, maxID, func(n int) error { return s3Key(func(k *fleet.S3Key) { k.Name = text(n) }) }},
		{"an S3 key's secret", "$.secret", 1, maxS3Sealed, func(n int) error { return s3Key(func(k *fleet.S3Key) { k.Sealed = raw(n) }) }},
		{"an endpoint's releases", "$.releases", 1, fleet.MaxReleases, func(n int) error {
			return endpointOf(func(e *fleet.Endpoint) { e.Releases = make([]fleet.Release, n) })
		}},
		{"the key of its webhooks", "$.spec.webhook_key", none, maxWebhookSealed, func(n int) error {
			return endpointOf(func(e *fleet.Endpoint) { e.Spec.WebhookKey = raw(n) })
		}},
		{"a key of a request", "Idempotency-Key", 1, maxOnceKey, func(n int) error {
			return try(CreatePods{Pods: []NewPod{{}}, Once: &fleet.Once{Key: text(n)}})
		}},
		{"what is kept for GPUs", "$.keepPercent", 0, 100, func(n int) error { return try(PutPlacement{fleet.Placement{KeepPercent: n}}) }},
		{"the notice of an interruption", "$.noticeSeconds", 0, int(fleet.MaxNotice / time.Second), func(n int) error {
			return try(PutPlacement{fleet.Placement{NoticeSeconds: n}})
		}},
		{"pods of a cluster", "$.compute.podCount", fleet.MinClusterPods, MaxPods, func(n int) error {
			c := clusterOf(theCluster)
			c.Cluster.Count = n
			return try(c)
		}},
	} {
		t.Run(b.name, func(t *testing.T) {
			for _, n := range []int{b.least - 1, b.least, b.most, b.most + 1} {
				if n <= none {
					continue
				}
				refused := fieldOf(b.try(n)) == b.field
				if within := n >= b.least && n <= b.most; within == refused {
					t.Errorf("%d: refused is %t", n, refused)
				}
			}
		})
	}
}
