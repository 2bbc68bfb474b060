package ctrd

import (
	"crypto/rand"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/leases"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/opencontainers/go-digest"

	"gantry/agent/ctrd/ctrdtest"
	"gantry/agent/pod"
)

func TestChoose(t *testing.T) {
	at := func(minutes int) time.Time { return time.Unix(int64(60*minutes), 0) }
	img := func(name string, used int, held bool, parts map[string]int64) stored {
		return stored{digest: digest.Digest(name), names: []string{name}, used: at(used), held: held, parts: parts}
	}
	own := func(name string, size int64) map[string]int64 { return map[string]int64{name: size} }
	for name, tc := range map[string]struct {
		all  []stored
		free int64
		want []string
	}{
		"nothing to free":    {[]stored{img("a", 1, false, own("a", 10))}, 0, nil},
		"the oldest first":   {[]stored{img("new", 3, false, own("n", 10)), img("old", 1, false, own("o", 10)), img("mid", 2, false, own("m", 10))}, 15, []string{"old", "mid"}},
		"what is held stays": {[]stored{img("held", 1, true, own("h", 10)), img("free", 2, false, own("f", 10))}, 100, []string{"free"}},
		"all that may go":    {[]stored{img("a", 1, false, own("a", 1)), img("b", 2, false, own("b", 1))}, 100, []string{"a", "b"}},
		"shared with a held one": {
			[]stored{img("a", 1, false, own("base", 90)), img("held", 2, true, own("base", 90)), img("c", 3, false, own("c", 10))},
			5,
			[]string{"c"},
		},
		"shared among those that go": {
			[]stored{img("a", 1, false, own("base", 90)), img("b", 2, false, own("base", 90)), img("c", 3, false, own("c", 10))},
			50,
			[]string{"a", "b"},
		},
		"some of it is shared": {
			[]stored{img("a", 1, false, map[string]int64{"base": 90, "a": 10}), img("held", 2, true, own("base", 90)), img("c", 3, false, own("c", 10))},
			10,
			[]string{"a"},
		},
		"one moment, by digest": {[]stored{img("b", 1, false, own("b", 1)), img("a", 1, false, own("a", 1))}, 1, []string{"a"}},
		"nothing of it counts":  {[]stored{img("a", 1, false, nil), img("b", 2, false, own("b", 1))}, 1, []string{"b"}},
		"no images":             {nil, 10, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, s := range choose(tc.all, tc.free) {
				got = append(got, s.names...)
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}

// smallDisk puts what the test's daemon writes on an ext4 file system of its own.
func smallDisk(t *testing.T, megabytes int) {
	t.Helper()
	dir, err := os.MkdirTemp("", "gd")
	if err != nil {
		t.Fatal(err)
	}
	file, mount := filepath.Join(dir, "disk"), filepath.Join(dir, "m")
	command := func(name string, args ...string) {
		t.Helper()
		if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
			t.Fatalf("%s %v: %v\n%s", name, args, err, out)
		}
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Mkdir(mount, 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Truncate(int64(megabytes) << 20); err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
	command("mkfs.ext4", "-q", "-m", "0", "-O", "^has_journal", file)
	command("mount", "-o", "loop", file, mount)
	t.Cleanup(func() { command("umount", mount) })
	t.Setenv("TMPDIR", mount)
}

// fat is a busybox image with so many megabytes that cannot be compressed, in a layer of its own.
func fat(tb testing.TB, name string, megabytes int) v1.Image {
	tb.Helper()
	body := make([]byte, megabytes<<20)
	_, _ = rand.Read(body)
	return withLayer(tb, withEnv(tb, "WHAT="+name), layerOf(tb, "fat-"+name, string(body)))
}

func (b *bench) pull(ref string) string {
	b.Helper()
	d, err := b.r.Pull(b.ctx, ref, nil, nil)
	if err != nil {
		b.Fatalf("pull %s: %v", ref, err)
	}
	return d
}

// age says that an image was used last so long ago.
func (b *bench) age(ref string, ago time.Duration) {
	b.Helper()
	if err := b.r.setLabel(b.r.in(b.ctx), ref, labelUsed, stamp(time.Now().Add(-ago))); err != nil {
		b.Fatal(err)
	}
}

func (b *bench) percent() int {
	b.Helper()
	used, size, err := b.r.Room(b.ctx)
	if err != nil || size == 0 {
		b.Fatalf("room: %d of %d, %v", used, size, err)
	}
	return int(100 * used / size)
}

// TestImagesAreCollectedOnAFullDisk fills a small disk with images, removes what nobody needs, and finds that pods run
// on and start again.
func TestImagesAreCollectedOnAFullDisk(t *testing.T) {
	smallDisk(t, 80)
	b := setup(t)
	reg := newRegistryServer(t)
	refs := map[string]string{}
	for i, name := range []string{"oldest", "running", "ordered", "pinned", "prefetched", "recent"} {
		refs[name] = reg.push(t, name+":1", fat(t, name, 3))
		if name == "prefetched" {
			if err := b.r.Prefetch(b.ctx, refs[name]); err != nil {
				t.Fatal(err)
			}
		} else {
			b.pull(refs[name])
		}
		b.age(refs[name], time.Duration(48-i)*time.Hour)
	}
	pinned, err := b.r.Image(b.ctx, refs["pinned"])
	if err != nil || pinned == "" {
		t.Fatal(pinned, err)
	}
	running := b.spec(refs["running"], "sleep 1000")
	b.start(running)
	full := b.percent()
	used, size, _ := b.r.Room(b.ctx)
	wanted := pod.WantedImages{Ordered: []string{refs["ordered"], pinned}}
	// Less than one image has to go: it is the one that was used longest ago.
	removed, err := b.r.Collect(b.ctx, 2<<20, func() pod.WantedImages { return wanted })
	if err != nil || !slices.Equal(removed, []string{refs["oldest"]}) {
		t.Fatalf("removed %v, %v; want %s", removed, err, refs["oldest"])
	}
	after, _, err := b.r.Room(b.ctx)
	if err != nil || used-after < 3<<20 {
		t.Errorf("%d of %d bytes are free, %v", used-after, size, err)
	}
	// However much is asked for, what is needed stays.
	removed, err = b.r.Collect(b.ctx, size, func() pod.WantedImages { return wanted })
	if err != nil || !slices.Equal(removed, []string{refs["recent"]}) {
		t.Errorf("removed %v, %v; want %s", removed, err, refs["recent"])
	}
	t.Logf("the disk was %d %% full, then %d %%", full, b.percent())
	for _, name := range []string{"running", "ordered", "pinned", "prefetched"} {
		if d, err := b.r.Image(b.ctx, refs[name]); err != nil || d == "" {
			t.Errorf("%s is gone: %v", name, err)
		}
	}
	if c := b.look(running.Pod); c.Task != pod.TaskRunning {
		t.Errorf("the pod is %+v", c)
	}
	b.remove(running.Pod)
	reg.setFault(func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	again := b.spec(refs["running"], "sh -c 'ls /fat-running && echo again $WHAT'")
	b.start(again)
	b.finish(again.Pod)
	b.log(again, "again running")
	b.remove(again.Pod)
	reg.setFault(nil)
	if d := b.pull(refs["oldest"]); d == "" {
		t.Error("what was removed cannot be pulled again")
	}
	b.run(refs["oldest"], b.pull(refs["oldest"]), "sh -c 'echo is=$WHAT.'", "is=oldest.")
	if _, err := b.r.Collect(b.ctx, size, func() pod.WantedImages { return pod.WantedImages{} }); err != nil {
		t.Error(err)
	}
}

// TestImportedImagesStay replaces an imported image: the operator's stays, the one before while a pod knows it.
func TestImportedImagesStay(t *testing.T) {
	b := setup(t)
	load := func(what string) string {
		t.Helper()
		const ref = "docker.io/example/app:1"
		path := filepath.Join(t.TempDir(), "image.tar")
		ctrdtest.WriteDockerArchive(t, path, map[string]v1.Image{ref: withEnv(t, "WHAT="+what)})
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := b.r.Import(b.ctx, f); err != nil {
			t.Fatal(err)
		}
		d, err := b.r.Image(b.ctx, ref)
		if err != nil || d == "" {
			t.Fatal(d, err)
		}
		return d
	}
	has := func(ref, digest string) {
		t.Helper()
		if d, err := b.r.Image(b.ctx, ref); err != nil || d != digest {
			t.Errorf("%s is %q, %v; want %q", ref, d, err, digest)
		}
	}
	first, second := load("first"), load("second")
	has("example/app:1@"+first, first)
	has("example/app:1", second)
	b.run("example/app:1", first, "sh -c 'echo is=$WHAT.'", "is=first.")
	known := pod.WantedImages{Known: []string{"example/app:1", first}}
	for _, wanted := range []pod.WantedImages{known, {}} {
		if _, err := b.r.Collect(b.ctx, 1<<40, func() pod.WantedImages { return wanted }); err != nil {
			t.Fatal(err)
		}
		has("example/app:1@"+second, second)
		if wanted.Known != nil {
			has("example/app:1@"+first, first)
		}
	}
	has("example/app:1@"+first, "")
}

// TestLeftoversOfAbortedPullsAreDropped breaks a pull off and collects before and after it counts as given up.
func TestLeftoversOfAbortedPullsAreDropped(t *testing.T) {
	b := setup(t)
	reg := newRegistryServer(t)
	ref := reg.push(t, "app:1", fat(t, "x", 2))
	reg.setFault(altered(func(b []byte) []byte { return b[:len(b)/2] }))
	_, err := b.r.Pull(b.ctx, ref, nil, nil)
	wantFault(t, err, pod.Retry, "")
	left := func() (pulls int) {
		t.Helper()
		ls, err := b.r.client.LeasesService().List(b.r.in(b.ctx))
		if err != nil {
			t.Fatal(err)
		}
		return len(slices.DeleteFunc(ls, func(l leases.Lease) bool { return !strings.HasPrefix(l.ID, pullPrefix) }))
	}
	collect := func() {
		t.Helper()
		if _, err := b.r.Collect(b.ctx, 0, func() pod.WantedImages { return pod.WantedImages{} }); err != nil {
			t.Fatal(err)
		}
	}
	collect()
	if pulls := left(); pulls != 1 {
		t.Fatalf("%d leases: the next try cannot go on", pulls)
	}
	b.r.paused.mu.Lock()
	for key, since := range b.r.paused.since {
		b.r.paused.since[key] = since.Add(-abandonedAfter)
	}
	b.r.paused.mu.Unlock()
	collect()
	if pulls := left(); pulls != 0 {
		t.Errorf("%d leases are left", pulls)
	}
	reg.setFault(nil)
	b.pull(ref)
}

// TestPausedPulls has a pull wait while what is left of it is being dropped.
func TestPausedPulls(t *testing.T) {
	var p pausedPulls
	now := time.Now()
	if p.begin("k", now) || p.begin("k", now.Add(abandonedAfter-1)) {
		t.Error("dropped before its time")
	}
	if !p.begin("k", now.Add(abandonedAfter)) || p.begin("k", now.Add(abandonedAfter)) {
		t.Error("not dropped once")
	}
	done := make(chan error, 1)
	go func() { done <- p.wait(t.Context(), "k") }()
	select {
	case err := <-done:
		t.Error("did not wait", err)
	case <-time.After(20 * time.Millisecond):
	}
	p.end("k")
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := p.wait(t.Context(), "k"); err != nil {
		t.Error(err)
	}
}

// TestAnImageThatFillsTheDiskIsGivenUp pulls a small image that unpacks to more than the disk has, beside a good one.
func TestAnImageThatFillsTheDiskIsGivenUp(t *testing.T) {
	smallDisk(t, 96)
	b := setup(t)
	reg := newRegistryServer(t)
	bomb := reg.push(t, "bomb:1", withLayer(t, ctrdtest.BusyboxImage(t, nil), layerOf(t, "zeros", string(make([]byte, 128<<20)))))
	_, err := b.r.Pull(b.ctx, bomb, nil, nil)
	wantFault(t, err, pod.Retry, "no room for image")
	good := reg.push(t, "good:1", withEnv(t, "WHAT=good"))
	err = ctrdtest.Eventually(time.Minute, func() error {
		_, err := b.r.Pull(b.ctx, good, nil, nil)
		if err == nil && b.percent() > 50 {
			err = fmt.Errorf("the disk is %d %% full after the bomb", b.percent())
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}
