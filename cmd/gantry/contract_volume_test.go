package main

import (
	"context"
	"strings"
	"testing"
	"time"

	"gantry/fleet"
	"gantry/test/plane"
)

// volumeRecord is what these tests read of a network volume.
type volumeRecord struct {
	ID, Status string
	Size       int
}

func TestVolumesThroughTheRealFace(t *testing.T) {
	s := newSite(t)
	s.bad(exitUsage, "volume create datasets --size 100 --data-center dev-1") // there is no storage yet
	s.good("admin volume-backend add filer --data-center dev-1 --nfs filer.example:/srv/volumes")
	if out := s.good("host role " + string(plane.Host) + " storage"); !strings.Contains(out, "has the roles: storage") {
		t.Errorf("role: %s", out)
	}
	if out := s.good("host get " + string(plane.Host)); !strings.Contains(out, "Roles:           storage\n") || !strings.Contains(out, "Mounts volumes:  cephfs, local, nfs\n") {
		t.Errorf("host:\n%s", out)
	}
	made := record[volumeRecord](s, "volume create datasets --size 100 --data-center dev-1 --idempotency-key one")
	if again := record[volumeRecord](s, "volume create datasets --size 100 --data-center dev-1 --idempotency-key one"); again != made || made.Status != "CREATING" {
		t.Errorf("%+v, then %+v", made, again)
	}
	pod := s.running("pod create web busybox --cpu cpu3g --network-volume datasets:/data")
	if out := s.good("pod get web"); !strings.Contains(out, "network volume "+made.ID+" at /data") {
		t.Errorf("pod:\n%s", out)
	}
	if out := s.good("pod list --network-volume " + made.ID); !strings.Contains(out, string(pod)) {
		t.Errorf("pods:\n%s", out)
	}
	s.good("pod update web --network-volume " + made.ID + ":/corpus")
	s.bad(exitRefused, "volume delete datasets") // the pod has it
	s.bad(exitUsage, "volume update datasets --size 99")
	if out := s.good("volume update datasets --size 200 --name corpus"); !strings.Contains(out, "200 GB") || !strings.Contains(out, "corpus") {
		t.Errorf("update:\n%s", out)
	}
	if out := s.good("catalog datacenters --network-volume-type STANDARD"); !strings.Contains(out, "dev-1") || strings.Contains(out, "dev-2") || !strings.Contains(out, "STANDARD") {
		t.Errorf("data centers:\n%s", out)
	}
	s.good("pod delete web")
	s.good("volume delete corpus")
	s.bad(exitNotFound, "volume get "+made.ID)
	s.bad(exitRefused, "admin volume-backend delete filer") // its data is not removed yet
	s.report(pod, "gone")
	s.plane.Provision(fleet.VolumeID(made.ID))
	s.good("admin volume-backend update filer --closed")
	s.bad(exitUsage, "volume create more --size 10 --data-center dev-1")
	s.good("admin volume-backend delete filer")
	s.bad(exitNotFound, "admin volume-backend get filer")
}

// TestVolumeCreateWaits lets the volume's host make it while the command waits, and then none.
func TestVolumeCreateWaits(t *testing.T) {
	s := newSite(t)
	s.plane.PutBackend("disks", "dev-1", fleet.VolumeStandard)
	made := make(chan struct{})
	go func() { // ends with the volume, or with the deadline of await
		defer close(made)
		s.await("there is a volume", func() bool {
			all, err := s.plane.Volumes(context.Background(), s.user())
			if err == nil && len(all) == 1 {
				s.plane.Provision(all[0].Volume.ID)
			}
			return err == nil && len(all) == 1
		})
	}()
	if v := record[volumeRecord](s, "volume create a --size 10 --data-center dev-1 --wait --timeout 20s"); v.Status != "READY" {
		t.Errorf("%+v", v)
	}
	<-made
	began := time.Now()
	text := s.bad(exitTimeout, "volume create b --size 10 --data-center dev-1 --wait --timeout 50ms")
	if !strings.Contains(text, "gave up waiting for network volume") || !strings.Contains(text, "not connected") || time.Since(began) > time.Minute {
		t.Errorf("%s", text)
	}
}

func TestS3KeysThroughTheRealFace(t *testing.T) {
	s := newSite(t)
	secret := strings.TrimSpace(s.good("s3-key create laptop"))
	if len(secret) != len("rps_")+43 || !strings.HasPrefix(secret, "rps_") {
		t.Errorf("secret %q", secret)
	}
	s.plane.Advance(time.Second)
	type key struct {
		ID       string
		ReadOnly bool
	}
	made := record[struct{ Key key }](s, "s3-key create ci --read-only --expires-in 24h")
	all := record[struct{ S3Keys []key }](s, "s3-key list")
	if len(all.S3Keys) != 2 || all.S3Keys[1] != made.Key || !made.Key.ReadOnly {
		t.Errorf("%+v, %+v", made, all)
	}
	if out := s.good("s3-key list"); strings.Contains(out, secret) || !strings.Contains(out, made.Key.ID) {
		t.Errorf("list:\n%s", out)
	}
	s.good("s3-key delete " + made.Key.ID)
	s.bad(exitNotFound, "s3-key delete "+made.Key.ID)
}
