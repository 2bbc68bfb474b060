package disk

import (
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// fakeQuotas is a file system with project quotas; ids are written on folders as on a real one.
type fakeQuotas struct {
	ids    map[uint64]uint32 // by inode
	limits map[uint32]quota
	fail   error // of the next limit or setID
}

func (f *fakeQuotas) enforced() error { return nil }

func (f *fakeQuotas) id(path string) (uint32, error) {
	var st unix.Stat_t
	err := unix.Lstat(path, &st)
	return f.ids[st.Ino], err
}

func (f *fakeQuotas) setID(path string, id uint32) error {
	var st unix.Stat_t
	err := errors.Join(unix.Lstat(path, &st), f.fail)
	if err == nil {
		f.ids[st.Ino] = id
	}
	return err
}

func (f *fakeQuotas) get(id uint32) (quota, error) { return f.limits[id], nil }

func (f *fakeQuotas) limit(id uint32, bytes, inodes uint64) error {
	q := f.limits[id]
	q.maxBytes, q.maxInodes = bytes, inodes
	f.limits[id] = q
	return nil
}

func projectPool(t *testing.T) (*Pool, *fakeQuotas) {
	t.Helper()
	f := &fakeQuotas{ids: map[uint64]uint32{}, limits: map[uint32]quota{}}
	p, err := Open(Config{Dir: t.TempDir(), Mechanism: None})
	must(t, err)
	m := &projects{p.dir, f}
	p.chosen, p.all = m, []mechanism{m, p.all[2]}
	return p, f
}

func TestProjectsAreLimitedFoldersWithAnIDEach(t *testing.T) {
	p, f := projectPool(t)
	ctx := t.Context()
	a, err := p.Make(ctx, "a", 2)
	must(t, err)
	b, err := p.Keep(ctx, "b", 1)
	must(t, err)
	idA, _ := f.id(a)
	idB, _ := f.id(b)
	if idA == idB || min(idA, idB) < leastProject || max(idA, idB) > math.MaxInt32 {
		t.Errorf("ids %d and %d", idA, idB)
	}
	if q := f.limits[idA]; q.maxBytes < 2_000_000_000 || q.maxBytes > 2_050_000_000 || q.maxInodes < 2_000_000_000/bytesPerFile {
		t.Errorf("limit %+v", q)
	}
	write(t, b, "note", "kept")
	q := f.limits[idB]
	q.bytes = 4096
	f.limits[idB] = q
	for _, gb := range []int64{3, 1} { // grows, and never shrinks
		_, err = p.Keep(ctx, "b", gb)
		must(t, err)
	}
	if u := usage(t, p, "b"); u.Used != 4096 || u.Size < 3_000_000_000 {
		t.Errorf("usage %+v", u)
	}
	wantFile(t, b, "note", "kept")
	must(t, p.Rename(ctx, "b", "b.1"))
	for _, name := range []string{"a", "b.1", "b.1"} {
		must(t, p.Remove(ctx, name))
	}
	if f.limits[idA].maxBytes+f.limits[idB].maxBytes != 0 {
		t.Errorf("limits are left: %v", f.limits)
	}
	if got := entries(t, p.dir); len(got) != 0 {
		t.Errorf("left: %v", got)
	}
}

// TestProjectIDsOfOthersAreNotTaken has the wanted ids in use.
func TestProjectIDsOfOthersAreNotTaken(t *testing.T) {
	p, f := projectPool(t)
	m := p.chosen.(*projects)
	first, err := m.free("a")
	must(t, err)
	f.limits[first] = quota{inodes: 1}
	f.limits[leastProject|(first+1)&projectMask] = quota{maxBytes: 1}
	dir, err := p.Make(t.Context(), "a", 1)
	must(t, err)
	if id, _ := f.id(dir); id != leastProject|(first+2)&projectMask {
		t.Errorf("id %x after %x", id, first)
	}
}

// TestAProjectThatWasNotFinishedIsMadeAnew interrupts between the folder and its limit.
func TestAProjectThatWasNotFinishedIsMadeAnew(t *testing.T) {
	p, f := projectPool(t)
	f.fail = unix.EIO
	if _, err := p.Keep(t.Context(), "a", 1); !errors.Is(err, unix.EIO) {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(p.dir, "a")); !errors.Is(err, fs.ErrNotExist) {
		t.Error("a folder that nothing limits has the disk's name:", err)
	}
	f.fail = nil
	dir, err := p.Keep(t.Context(), "a", 1)
	must(t, err)
	if id, _ := f.id(dir); id < leastProject {
		t.Errorf("id %d", id)
	}
}

// TestStructuresOfTheKernel has sizes and places from linux/fs.h and linux/dqblk_xfs.h.
func TestStructuresOfTheKernel(t *testing.T) {
	var x fsxattr
	var q dqblk
	var s qstat
	for what, is := range map[string][2]uintptr{
		"fsxattr":                       {unsafe.Sizeof(x), fsGetXattr >> 16 & 0x3fff},
		"fsxattr.fsx_projid":            {unsafe.Offsetof(x.projid), 12},
		"fs_disk_quota":                 {unsafe.Sizeof(q), 112},
		"fs_disk_quota.d_id":            {unsafe.Offsetof(q.id), 4},
		"fs_disk_quota.d_blk_hardlimit": {unsafe.Offsetof(q.blkHard), 8},
		"fs_disk_quota.d_ino_hardlimit": {unsafe.Offsetof(q.inoHard), 24},
		"fs_disk_quota.d_bcount":        {unsafe.Offsetof(q.bcount), 40},
		"fs_disk_quota.d_icount":        {unsafe.Offsetof(q.icount), 48},
		"fs_disk_quota.d_rtb_hardlimit": {unsafe.Offsetof(q.rtbHard), 72},
		"fs_disk_quota.d_padding4":      {unsafe.Offsetof(q.pad4), 104},
		"fs_quota_stat":                 {unsafe.Sizeof(s), 80},
		"fs_quota_stat.qs_flags":        {unsafe.Offsetof(s.flags), 2},
		"fs_quota_stat.qs_incoredqs":    {unsafe.Offsetof(s.incoredqs), 56},
	} {
		if is[0] != is[1] {
			t.Errorf("%s: %d, want %d", what, is[0], is[1])
		}
	}
	d := limits(7, 1000, 3)
	if d.version != 1 || d.flags != 2 || d.fieldmask != 0xa || d.id != 7 || d.blkHard != 2 || d.inoHard != 3 {
		t.Errorf("%+v", d)
	}
	d.bcount, d.icount = 3, 4
	if q := d.quota(); q != (quota{1536, 4, 1024, 3}) {
		t.Errorf("%+v", q)
	}
}

// TestWhatThisHostOffers: the kernel that tests run on has no quotas, and says so.
func TestWhatThisHostOffers(t *testing.T) {
	for _, c := range []struct {
		base      string
		direct    bool
		mechanism string
		refused   map[string]string
	}{
		{t.TempDir(), false, Loop, map[string]string{Project: "quota"}},
		{onBtrfs(t), false, Loop, map[string]string{Project: "neither ext4 nor xfs"}},
		{onBtrfs(t), true, Loop, map[string]string{Project: "neither ext4 nor xfs"}},
	} {
		p, err := Open(Config{Dir: c.base, Direct: c.direct, Mechanism: Auto})
		must(t, err)
		if p.Mechanism() != c.mechanism {
			t.Errorf("mechanism %s, want %s", p.Mechanism(), c.mechanism)
		}
		for _, r := range p.Refused() {
			if want := c.refused[r.Mechanism]; want == "" || !strings.Contains(r.Reason.Error(), want) {
				t.Errorf("%s refused: %v, want %q", r.Mechanism, r.Reason, want)
			}
		}
		if len(p.Refused()) != len(c.refused) {
			t.Errorf("refused %v", p.Refused())
		}
		for _, asked := range []string{Project, "zfs"} {
			if _, err := Open(Config{Dir: c.base, Mechanism: asked}); err == nil {
				t.Errorf("%s is offered", asked)
			}
		}
	}
}
