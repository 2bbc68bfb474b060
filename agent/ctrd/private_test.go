package ctrd

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/containerd/errdefs"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/opencontainers/go-digest"

	"gantry/agent/ctrd/ctrdtest"
	"gantry/agent/pod"
	"gantry/fleet"
)

func good() *fleet.Credential { return credential(testUser, testPassword) }

func withEnv(tb testing.TB, kv string) v1.Image {
	return ctrdtest.BusyboxImage(tb, func(c *v1.Config) { c.Env = append(c.Env, kv) })
}

// layerOf makes a layer of files: names and texts in turns. A name that ends with a slash is a folder.
func layerOf(tb testing.TB, files ...string) v1.Layer {
	tb.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for i := 0; i < len(files); i += 2 {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: files[i], Mode: 0o644, Size: int64(len(files[i+1]))}
		if strings.HasSuffix(h.Name, "/") {
			h.Typeflag, h.Mode = tar.TypeDir, 0o755
		}
		if err := w.WriteHeader(h); err != nil {
			tb.Fatal(err)
		}
		_, _ = io.WriteString(w, files[i+1])
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(buf.Bytes())), nil }
	l, err := tarball.LayerFromOpener(open, tarball.WithCompressedCaching, tarball.WithCompressionLevel(gzip.BestSpeed))
	if err != nil {
		tb.Fatal(err)
	}
	return l
}

func withLayer(tb testing.TB, img v1.Image, l v1.Layer) v1.Image {
	tb.Helper()
	out, err := mutate.AppendLayers(img, l)
	if err != nil {
		tb.Fatal(err)
	}
	return out
}

// secretImage is an image with a secret in its last layer, and that layer.
func secretImage(tb testing.TB) (v1.Image, v1.Layer) {
	l := layerOf(tb, "etc/secret", "the-secret-of-a-tenant")
	return withLayer(tb, ctrdtest.BusyboxImage(tb, nil), l), l
}

// blobsOf counts what is downloaded from a registry, but for manifests.
func blobsOf(s *registryServer) *atomic.Int32 {
	var n atomic.Int32
	s.hits = func(r *http.Request) {
		if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") {
			n.Add(1)
		}
	}
	return &n
}

// run has a pod of the image write something.
func (b *bench) run(ref, digest, args, want string) {
	b.Helper()
	s := b.spec(ref, args)
	s.Digest = digest
	b.start(s)
	b.finish(s.Pod)
	b.log(s, want)
	b.remove(s.Pod)
}

// TestTagThatMoved lets two tenants pull a reference before and after its tag moved: each runs what he pulled.
func TestTagThatMoved(t *testing.T) {
	b := setup(t)
	reg := newRegistryServer(t)
	const echo = "sh -c 'echo is=$WHAT.'"
	ref := reg.push(t, "private:v", withEnv(t, "WHAT=old-secret"))
	reg.setFault(needsBasic)
	first, err := b.r.Pull(b.ctx, ref, good(), nil)
	if err != nil {
		t.Fatal(err)
	}
	b.run(ref, first, echo, "is=old-secret.")
	reg.setFault(nil)
	reg.push(t, "private:v", withEnv(t, "WHAT=new-public"))
	second, err := b.r.Pull(b.ctx, ref, nil, nil)
	if err != nil || second == first {
		t.Fatalf("%q, %v", second, err)
	}
	b.run(ref, second, echo, "is=new-public.")
	// The first one's image is there no more, or it is that one; never another.
	s := b.spec(ref, echo)
	s.Digest = first
	if err := b.r.Define(b.ctx, s); err == nil {
		if err := b.r.Task(b.ctx, s.Pod); err != nil {
			t.Fatal(err)
		}
		if _, err := b.r.Start(b.ctx, s.Pod); err != nil {
			t.Fatal(err)
		}
		b.finish(s.Pod)
		b.log(s, "is=old-secret.")
		b.remove(s.Pod)
	} else {
		wantFault(t, err, pod.Retry, "is not on the host any more")
	}
	for _, digest := range []string{"", "latest", digest.FromString("nothing").String()} {
		s.Digest = digest
		wantFault(t, b.r.Define(b.ctx, s), pod.Retry, "is not on the host any more")
	}
}

// hostile serves an image of its own making without the blobs that it does not have.
func hostile(lacks ...string) badAnswer {
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		for _, d := range lacks {
			if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, d) {
				w.WriteHeader(http.StatusNotFound)
				return
			}
		}
		next.ServeHTTP(w, r)
	}
}

// naming answers that a tag is that image, and serves nothing.
func naming(t *testing.T, img v1.Image) badAnswer {
	d, err1 := img.Digest()
	mt, err2 := img.MediaType()
	size, err3 := img.Size()
	if err1 != nil || err2 != nil || err3 != nil {
		t.Fatal(err1, err2, err3)
	}
	return func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
		if r.Method != http.MethodHead {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		w.Header().Set("Content-Type", string(mt))
		w.Header().Set("Docker-Content-Digest", d.String())
		w.Header().Set("Content-Length", fmt.Sprint(size))
	}
}

// TestPrivateContentIsNotForWhoNamesIt has registries that know the digests of another tenant's image
// and lack its bytes.
func TestPrivateContentIsNotForWhoNamesIt(t *testing.T) {
	b := setup(t)
	reg := newRegistryServer(t)
	img, layer := secretImage(t)
	ref := reg.push(t, "private:v", img)
	reg.setFault(needsBasic)
	if _, err := b.r.Pull(b.ctx, ref, good(), nil); err != nil {
		t.Fatal(err)
	}
	stolen, err := layer.Digest()
	if err != nil {
		t.Fatal(err)
	}
	chained := withLayer(t, ctrdtest.BusyboxImage(t, nil), layerOf(t, "etc/mine", "mine"))
	for name, make := range map[string]func(evil *registryServer) (ref string, class pod.Class, sentence string){
		"the manifest": func(evil *registryServer) (string, pod.Class, string) {
			evil.setFault(naming(t, img))
			return evil.host + "/mine:1", pod.Fatal, "incomplete in its registry"
		},
		"a layer": func(evil *registryServer) (string, pod.Class, string) {
			ref := evil.push(t, "mine:1", withLayer(t, withEnv(t, "WHAT=evil"), layer))
			evil.setFault(hostile(stolen.String()))
			return ref, pod.Fatal, "incomplete in its registry"
		},
		"the files": func(evil *registryServer) (string, pod.Class, string) {
			return evil.push(t, "mine:1", claiming(t, chained, img)), pod.Fatal, "cannot be unpacked"
		},
		"the files, of layers of no kind": func(evil *registryServer) (string, pod.Class, string) {
			return evil.push(t, "mine:1", claiming(t, unkind(t, chained), img)), pod.Fatal, "cannot be unpacked"
		},
		"the files, without layers": func(evil *registryServer) (string, pod.Class, string) {
			return evil.push(t, "mine:1", claiming(t, empty.Image, img)), pod.Fatal, "cannot be unpacked"
		},
	} {
		for _, auth := range []*fleet.Credential{nil, good(), credential("other", "other")} {
			for _, life := range []string{"the same agent", "another agent"} {
				t.Run(fmt.Sprintf("%s, credential %v, %s", name, auth != nil, life), func(t *testing.T) {
					r := b.r
					if life != "the same agent" {
						r = b.agent()
						defer r.Close()
					}
					ref, class, sentence := make(newRegistryServer(t))
					d, err := r.Pull(b.ctx, ref, auth, nil)
					if err == nil {
						t.Fatalf("%s is his now", d)
					}
					wantFault(t, err, class, sentence)
					if d, err := r.Image(b.ctx, ref); d != "" || err != nil {
						t.Errorf("%q, %v", d, err)
					}
				})
			}
		}
	}
}

// claiming gives an image the configuration of another: it says that its layers become the other's files.
func claiming(t *testing.T, img, other v1.Image) v1.Image {
	t.Helper()
	mine, err1 := img.ConfigFile()
	theirs, err2 := other.ConfigFile()
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	mine = mine.DeepCopy()
	mine.RootFS, mine.OS, mine.Architecture = theirs.RootFS, theirs.OS, theirs.Architecture
	out, err := mutate.ConfigFile(img, mine)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// unkind gives an image's layers a type that nobody knows.
func unkind(t *testing.T, img v1.Image) v1.Image {
	t.Helper()
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	out := empty.Image
	for _, l := range layers {
		if out, err = mutate.Append(out, mutate.Addendum{Layer: l, MediaType: types.MediaType("application/x-thing")}); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// TestPrivateContentIsForWhoeverCanReadIt counts downloads: who has read a blob need not again, others must.
func TestPrivateContentIsForWhoeverCanReadIt(t *testing.T) {
	b := setup(t)
	reg, mirror := newRegistryServer(t), newRegistryServer(t)
	img, _ := secretImage(t)
	ref, copied := reg.push(t, "private:v", img), mirror.push(t, "copy:v", img)
	reg.push(t, "private:w", img)
	n, m := blobsOf(reg), blobsOf(mirror)
	reg.setFault(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if user, password, _ := r.BasicAuth(); user == "second" && password == "account" {
			next.ServeHTTP(w, r)
			return
		}
		needsBasic(w, r, next)
	})
	const all = 3 // configuration and two layers
	second := credential("second", "account")
	r := b.r
	for i, step := range []struct {
		ref        string
		auth       *fleet.Credential
		count      *atomic.Int32
		want       int32
		afterwards bool // the agent was started anew
	}{
		{ref, good(), n, all, false},
		{ref, good(), n, 0, false},
		{strings.TrimSuffix(ref, "v") + "w", good(), n, 0, false},
		{ref, second, n, all, false},
		{ref, second, n, 0, false},
		{copied, second, m, all, false}, // with a credential that his registry does not ask for
		{ref, good(), n, all, true},
		{ref, good(), n, 0, false},
		{copied, nil, m, all, false}, // now everybody can have it, from there
		{copied, nil, m, 0, false},
		{ref, second, n, 0, false},
		{ref, good(), n, 0, true},
	} {
		if step.afterwards {
			r = b.agent()
			defer r.Close()
		}
		step.count.Store(0)
		d, err := r.Pull(b.ctx, step.ref, step.auth, nil)
		if err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
		if got := step.count.Load(); got != step.want {
			t.Errorf("step %d: %d downloads, want %d", i, got, step.want)
		}
		if i == 3 {
			b.run(step.ref, d, "cat /etc/secret", "the-secret-of-a-tenant")
		}
	}
	b.noPullLease()
}

// noPullLease checks that finished pulls hold nothing.
func (b *bench) noPullLease() {
	b.Helper()
	list, err := b.r.client.LeasesService().List(b.r.in(b.ctx))
	if err != nil || len(list) > 0 {
		b.Errorf("leases %v, %v", list, err)
	}
}

// TestCredentialDoesNotCloseAnOpenImage pulls a public image with and without a credential.
func TestCredentialDoesNotCloseAnOpenImage(t *testing.T) {
	b := setup(t)
	reg := newRegistryServer(t)
	ref := reg.push(t, "public:1", ctrdtest.BusyboxImage(t, nil))
	n := blobsOf(reg)
	want, err := b.r.Pull(b.ctx, ref, nil, nil)
	if err != nil || n.Swap(0) != 2 {
		t.Fatal(err, n.Load())
	}
	if d, err := b.r.Pull(b.ctx, ref, good(), nil); err != nil || d != want || n.Load() != 0 {
		t.Errorf("with a credential: %q, %v, %d downloads", d, err, n.Load())
	}
	if d, err := b.r.Image(b.ctx, ref); err != nil || d != want {
		t.Errorf("afterwards: %q, %v", d, err)
	}
}

// TestImportedContentIsEverybodys names blobs of an imported image.
func TestImportedContentIsEverybodys(t *testing.T) {
	b := setup(t)
	b.local(nil)
	reg := newRegistryServer(t)
	ref := reg.push(t, "same:1", ctrdtest.BusyboxImage(t, func(c *v1.Config) { c.Cmd = []string{"true"} }))
	n := blobsOf(reg)
	if _, err := b.r.Pull(b.ctx, ref, nil, nil); err != nil || n.Load() > 2 {
		t.Errorf("%v, %d downloads", err, n.Load())
	}
}

// TestIndexNamesOneManifest pulls through an index: what runs is the manifest that was read, and the
// index is not read again.
func TestIndexNamesOneManifest(t *testing.T) {
	b := setup(t)
	reg := newRegistryServer(t)
	img := ctrdtest.BusyboxImage(t, nil)
	file, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	ref := reg.pushIndex(t, "index:1", mutate.AppendManifests(empty.Index, mutate.IndexAddendum{
		Add: img, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: file.OS, Architecture: file.Architecture}},
	}))
	var gets atomic.Int32
	reg.hits = func(r *http.Request) {
		if r.Method == http.MethodGet && r.URL.Path != "/v2/" {
			gets.Add(1)
		}
	}
	want, _ := img.Digest()
	for i, downloads := range []int32{4, 0} {
		gets.Store(0)
		if d, err := b.r.Pull(b.ctx, ref, nil, nil); err != nil || d != want.String() || gets.Load() != downloads {
			t.Errorf("pull %d: %q, %v, %d downloads", i, d, err, gets.Load())
		}
	}
	if d, err := b.r.Image(b.ctx, ref); err != nil || d != want.String() {
		t.Errorf("%q, %v", d, err)
	}
}

// TestTriesOfAPrivatePullShareALease breaks pulls off: one lease is there, which tells nothing of the
// credential, and the next try goes on with what the last has left.
func TestTriesOfAPrivatePullShareALease(t *testing.T) {
	b := setup(t)
	reg := newRegistryServer(t)
	img, layer := secretImage(t)
	ref := reg.push(t, "private:1", img)
	last, _ := layer.Digest()
	config, _ := img.ConfigName()
	var n atomic.Int32 // downloads of the configuration
	reg.hits = func(r *http.Request) {
		if strings.HasSuffix(r.URL.Path, config.String()) {
			n.Add(1)
		}
	}
	broken := func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		needsBasic(w, r, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, last.String()) {
				w.WriteHeader(http.StatusBadGateway)
				return
			}
			next.ServeHTTP(w, r)
		}))
	}
	reg.setFault(broken)
	ctx := b.r.in(b.ctx)
	name := ""
	for range 3 {
		_, err := b.r.Pull(b.ctx, ref, good(), nil)
		wantFault(t, err, pod.Retry, "status 502")
		list, err := b.r.client.LeasesService().List(ctx)
		if err != nil || len(list) != 1 || name != "" && list[0].ID != name {
			t.Fatalf("leases %v after %q, %v", list, name, err)
		}
		name = list[0].ID
	}
	reg.setFault(needsBasic)
	if _, err := b.r.Pull(b.ctx, ref, good(), nil); err != nil || n.Load() > 2 { // once refused, once let in
		t.Errorf("the last try: %v, %d requests for what the first has read", err, n.Load())
	}
	b.noPullLease()
	reg.setFault(broken)
	if _, err := b.r.Pull(b.ctx, ref, credential(testUser, "wrong"), nil); err == nil {
		t.Error("pulled with a wrong password")
	}
	b.noPullLease() // what is final leaves none
	other := b.agent()
	defer other.Close()
	if a, c := b.r.pullName("x", good()), other.pullName("x", good()); a == c || !errdefs.IsNotFound(b.leaseGone(name)) {
		t.Errorf("names %s and %s", a, c)
	}
}

func (b *bench) leaseGone(id string) error {
	list, err := b.r.client.LeasesService().List(b.r.in(b.ctx), "id=="+id)
	if err == nil && len(list) == 0 {
		return errdefs.ErrNotFound
	}
	return err
}
