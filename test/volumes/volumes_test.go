// Package volumes shows network volumes on real parts: a Ceph cluster, two hosts of networks of their own, containerd.
package volumes

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"gantry/api/admin"
	"gantry/api/v2"
	"gantry/client"
	"gantry/fleet"
	"gantry/test/cephtest"
	"gantry/test/devtest"
)

const (
	reachTimeout = time.Minute
	tier         = "HIGH_PERFORMANCE"
	mountPath    = "/workspace"
)

// world is a cluster of two hosts with a Ceph file system beside it.
type world struct {
	site *devtest.Site
	dev  *devtest.Dev
	ceph *cephtest.Cluster
	user *client.Client
	ops  *client.Client
	info devtest.Info
}

// TestNetworkVolumesOnCeph is the life of a network volume.
func TestNetworkVolumesOnCeph(t *testing.T) {
	w := start(t)
	volume := w.volume(t, "datasets", 10)
	// More than half of a host each.
	one, two := w.pod(t, "one", volume.ID), w.pod(t, "two", volume.ID)
	if one.HostID == two.HostID {
		t.Fatalf("both pods are on host %s", one.HostID)
	}
	t.Run("PodsReadWhatOthersWrote", func(t *testing.T) {
		w.must(t, one, "echo from one >"+mountPath+"/a && mkdir "+mountPath+"/d && echo x >"+mountPath+"/d/x")
		await(t, func() error { return w.says(t, two, "cat "+mountPath+"/a && ls "+mountPath, "from one\na\nd\n") })
		w.must(t, two, "echo from two >>"+mountPath+"/a && chown 1000:1000 "+mountPath+"/d/x && chmod 600 "+mountPath+"/d/x")
		await(t, func() error { return w.says(t, one, "cat "+mountPath+"/a", "from one\nfrom two\n") })
		await(t, func() error { return w.says(t, one, "stat -c %u:%g:%a "+mountPath+"/d/x", "1000:1000:600\n") })
	})
	t.Run("NothingLeadsOut", func(t *testing.T) {
		w.must(t, one, "cd "+mountPath+" && ln -s / root && ln -s ../.. up")
		for _, out := range []string{
			"mknod " + mountPath + "/dev b 7 0", "mknod " + mountPath + "/null c 1 3 && cat " + mountPath + "/null",
			"ls " + mountPath + "/root/.gantry-backend", "ls " + mountPath + "/up/.gantry-backend", "ls " + mountPath + "/../.gantry-backend",
			"mkdir " + mountPath + "/.snap/x", "mount -o remount,suid,dev " + mountPath, "umount " + mountPath,
		} {
			if text, code := w.run(t, one, out); code == 0 {
				t.Errorf("%s: %q", out, text)
			}
		}
		mount := w.must(t, one, "grep ' "+mountPath+" ' /proc/self/mountinfo")
		if !strings.Contains(mount, "nosuid") || !strings.Contains(mount, "nodev") || strings.Contains(mount, "shared:") || strings.Contains(mount, "AQ") {
			t.Errorf("the mount: %s", mount)
		}
	})
	t.Run("QuotaIsEnforcedAndGrows", func(t *testing.T) {
		// A file's holes count, too.
		w.must(t, one, "truncate -s 9990000000 "+mountPath+"/big")
		write := "dd if=/dev/zero of=" + mountPath + "/big bs=1M count=60 conv=fsync,notrunc oflag=append"
		await(t, func() error {
			if text, code := w.run(t, one, write); code == 0 || !strings.Contains(text, "exceeded") && !strings.Contains(text, "No space") {
				return fmt.Errorf("writing past the end of the volume: %d %q", code, text)
			}
			return nil
		})
		size := 11
		if _, err := w.user.UpdateVolume(t.Context(), volume.ID, v2.UpdateNetworkVolumeRequest{Size: &size}); err != nil {
			t.Fatal(err)
		}
		await(t, func() error {
			if text, code := w.run(t, one, write); code != 0 {
				return fmt.Errorf("after the volume has grown: %q", text)
			}
			return nil
		})
		w.must(t, one, "rm "+mountPath+"/big")
		w.stillThe(t, one, two)
	})
	t.Run("ADeadServerHurtsNobodyElse", func(t *testing.T) { w.deadServer(t, volume, one, two) })
	t.Run("ADeletedVolumeIsGone", func(t *testing.T) { w.deleted(t, volume, one, two) })
}

// deadServer stops the file system's servers, and starts them again.
func (w *world) deadServer(t *testing.T, volume v2.NetworkVolume, one, two v2.Pod) {
	heal := w.freeze(t)
	waiting := w.create(t, "waiting", volume.ID, 1)
	await(t, func() error {
		p, err := w.user.Pod(t.Context(), waiting.ID)
		if err != nil || !strings.Contains(string(p.Value.StatusReason), "storage of the network volume does not answer") {
			return fmt.Errorf("%s %q %w", p.Value.Status, p.Value.StatusReason, err)
		}
		return nil
	})
	for _, host := range []string{string(one.HostID), string(two.HostID)} { // nobody else on the hosts conditions
		other := v2.CreatePodRequest{Name: "other", CPU: &v2.CreateCPUConfig{ID: "cpu3c", VCPUCount: 2}, PodSettings: v2.PodSettings{Image: new(devtest.Image), Args: new(endsAtOnce)}}
		began := time.Now()
		made, err := w.user.CreatePod(t.Context(), other)
		if err != nil {
			t.Fatal(err)
		}
		w.runs(t, made.Value.ID)
		t.Logf("a pod without the volume ran after %v on %s", time.Since(began).Round(time.Millisecond), made.Value.HostID)
		w.remove(t, made.Value.ID)
		h, err := w.ops.Host(t.Context(), host)
		if err != nil || h.Value.State != fleet.HostReady {
			t.Errorf("host %s: %s, %v", host, h.Value.State, err)
		}
	}
	await(t, func() error { // operators are told
		h, err := w.ops.Host(t.Context(), string(one.HostID))
		if err != nil || !slices.ContainsFunc(h.Value.Conditions, func(n admin.HostCondition) bool { return n.Code == "volume_backend_down" && !n.Severe }) {
			return fmt.Errorf("conditions %+v, %w", h.Value.Conditions, err)
		}
		return nil
	})
	heal()
	w.runs(t, waiting.ID)
	for _, p := range []v2.Pod{one, two} {
		w.must(t, p, "echo again >>"+mountPath+"/a")
	}
	w.remove(t, waiting.ID)
	w.stillThe(t, one, two)
}

// deleted deletes the volume, first while pods have it.
func (w *world) deleted(t *testing.T, volume v2.NetworkVolume, pods ...v2.Pod) {
	var p *client.Problem
	if err := w.user.DeleteVolume(t.Context(), volume.ID); !errors.As(err, &p) || p.Status != 400 {
		t.Fatalf("deleting a volume that pods have: %v", err)
	}
	for _, pod := range pods {
		w.remove(t, pod.ID)
	}
	if err := w.user.DeleteVolume(t.Context(), volume.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := w.user.Volume(t.Context(), volume.ID); !client.IsNotFound(err) {
		t.Errorf("a deleted volume: %v", err)
	}
	await(t, func() error {
		b, err := w.ops.Backend(t.Context(), "ceph")
		if err != nil || b.Value.Volumes != 0 {
			return fmt.Errorf("the backend still has %d volumes, %w", b.Value.Volumes, err)
		}
		return nil
	})
	if err := w.ops.DeleteBackend(t.Context(), "ceph"); err != nil {
		t.Error(err)
	}
}
