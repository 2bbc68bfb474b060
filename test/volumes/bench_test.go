package volumes

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

const (
	largeMB    = 512
	smallFiles = 1000
	ioRounds   = 3

	attachRounds = 15
)

// work is what is timed, in the folder $D: it prints nanoseconds for each step, from a clock of hundredths of seconds, with what was written on the storage.
const work = `now() { read u x </proc/uptime; echo ${u%%.*}${u#*.}0000000; }
a=$(now); dd if=/dev/zero of=$D/large bs=1M count=` + "%d" + ` conv=fsync 2>/dev/null
b=$(now); dd if=$D/large of=/dev/null bs=1M iflag=direct 2>/dev/null || dd if=$D/large of=/dev/null bs=1M 2>/dev/null
c=$(now); mkdir $D/s; i=0; while [ $i -lt ` + "%d" + ` ]; do echo $i >$D/s/$i; i=$((i+1)); done; sync -f $D/s
d=$(now); cat $D/s/* >/dev/null; rm -r $D/s $D/large
e=$(now); echo $((b-a)) $((c-b)) $((d-c)) $((e-d))`

// BenchmarkVolumeIO compares what a pod does on its Ceph volume with the same on the host's own mount of the file
// system, in turns.
func BenchmarkVolumeIO(b *testing.B) {
	w := start(b)
	volume := w.volume(b, "bench", 100)
	pod := w.pod(b, "bench", volume.ID)
	outside := w.outside(b)
	script := fmt.Sprintf(work, largeMB, smallFiles)
	names := []string{"write", "read", "create", "readsmall"}
	for b.Loop() {
		sums := [2][4]time.Duration{}
		for range ioRounds {
			for i, run := range []func() string{
				func() string { return w.must(b, pod, "D="+mountPath+"; "+script) },
				func() string { return onHost(b, "D="+outside+"; "+script) },
			} {
				var took [4]time.Duration
				if _, err := fmt.Sscan(run(), &took[0], &took[1], &took[2], &took[3]); err != nil {
					b.Fatal(err)
				}
				for k, d := range took {
					sums[i][k] += d
				}
			}
		}
		for k, name := range names {
			in, out := sums[0][k].Seconds()/ioRounds, sums[1][k].Seconds()/ioRounds
			if k < 2 {
				b.ReportMetric(largeMB/in, name+"-MB/s")
			} else {
				b.ReportMetric(smallFiles/in, name+"-files/s")
			}
			b.ReportMetric(out/in, name+"-of-host")
		}
	}
	w.remove(b, pod.ID)
}

// outside makes a folder of its own on a host's mount of the file system.
func (w *world) outside(b *testing.B) string {
	b.Helper()
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		// The mount of the storage host may set quotas, that of its pods may not.
		if strings.Contains(line, "fuse.ceph-fuse") && strings.Contains(f[4], "/backends/ceph/") {
			dir := filepath.Join(f[4], "bench")
			if err := os.Mkdir(dir, 0o700); err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { _ = os.RemoveAll(dir) }) // the cluster goes anyhow
			return dir
		}
	}
	b.Fatal("no host has mounted the file system")
	return ""
}

func onHost(b *testing.B, script string) string {
	b.Helper()
	out, err := exec.Command("busybox", "sh", "-c", script).CombinedOutput()
	if err != nil {
		b.Fatalf("%v: %s", err, out)
	}
	return string(out)
}

// BenchmarkVolumeAttach compares the start of a pod with a volume whose storage is mounted with that of one without.
func BenchmarkVolumeAttach(b *testing.B) {
	w := start(b)
	volume := w.volume(b, "bench", 100)
	keeper := w.pod(b, "keeper", volume.ID)
	took := map[bool][]time.Duration{}
	for b.Loop() {
		for range attachRounds {
			for _, with := range []bool{false, true} {
				took[with] = append(took[with], w.timeStart(b, volume.ID, with))
			}
		}
	}
	b.ReportMetric(float64(median(took[true]).Microseconds())/1000, "with-ms")
	b.ReportMetric(float64((median(took[true])-median(took[false])).Microseconds())/1000, "added-ms")
	w.remove(b, keeper.ID)
}

// timeStart makes a pod, waits until it runs, and removes it.
func (w *world) timeStart(b *testing.B, volume string, with bool) time.Duration {
	b.Helper()
	body := w.body("start", volume, 1)
	if !with {
		body.Mounts = nil
	}
	began := time.Now()
	made, err := w.user.CreatePod(b.Context(), body)
	if err != nil {
		b.Fatal(err)
	}
	w.runs(b, made.Value.ID)
	took := time.Since(began)
	w.remove(b, made.Value.ID)
	return took
}

func median(all []time.Duration) time.Duration {
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[len(all)/2]
}
