package state

import (
	"testing"

	"gantry/fleet"
)

// keeps takes room for files.
func keeps(files ...fleet.ResultFile) KeepFiles { return KeepFiles{Files: files} }

func TestTheFilesOfAnAccountHaveABound(t *testing.T) {
	w := newWorld(t).settle()
	w.refused(fleet.CodeNotFound, keeps(resultFile("f1", 10)))
	w.must(PutObjectStore{sampleStore()}, keeps(resultFile("f1", 60), resultFile("f2", 30)))
	w.refused(fleet.CodeLimited, keeps(resultFile("f3", 11)))
	others := resultFile("f4", 60)
	others.Account = "other"
	w.must(keeps(others), DropFiles{Files: []fleet.ResultFile{resultFile("none", 1)}})
	others.ID, others.Bytes = "f5", 1
	w.refused(fleet.CodeLimited, keeps(others)) // 150 in all
	w.view(func(v *View) {
		if s, ok := v.ObjectStore(); !ok || s.Files != 3 || s.Bytes != 150 || s.Bucket != "results" {
			t.Errorf("%+v", s)
		}
	})
	if n := w.must(DropFiles{Files: []fleet.ResultFile{resultFile("f1", 0), resultFile("f1", 0), resultFile("f2", 99)}}); n != 2 {
		t.Errorf("%v were dropped", n)
	}
	w.must(keeps(resultFile("f6", 90)))
	w.check()
}

func TestFilesThatAreNone(t *testing.T) {
	w := newWorld(t).settle()
	w.must(PutObjectStore{sampleStore()})
	foreign, slash, longest, nobodys := resultFile("f2", 1), resultFile("a/b", 1), resultFile(long(maxID+1), 1), resultFile("f1", 1)
	foreign.Account, nobodys.Account = "other", "nobody"
	for _, cmd := range []KeepFiles{keeps(), keeps(resultFile("f1", 1), foreign), keeps(resultFile("f1", -1)), keeps(resultFile("", 1)), keeps(slash), keeps(longest)} {
		w.refused(fleet.CodeInvalid, cmd)
	}
	w.refused(fleet.CodeNotFound, keeps(nobodys))
	w.refused(fleet.CodeInvalid, KeepFiles{Files: make([]fleet.ResultFile, maxFilesKept+1)})
	w.refused(fleet.CodeInvalid, DropFiles{Files: make([]fleet.ResultFile, maxFilesKept+1)})
}

// A file is there until the second in which it expires.
func TestFilesExpire(t *testing.T) {
	w := newWorld(t).settle()
	later := resultFile("f2", 1)
	later.Expires = at(61)
	w.must(PutObjectStore{sampleStore()}, keeps(resultFile("f1", 1), later))
	for s, want := range map[int]int{59: 0, 60: 1, 61: 2, 1000: 2} {
		got, err := w.s.ExpiredFiles(at(s), 10)
		if err != nil || len(got) != want {
			t.Errorf("after %d s: %+v, %v", s, got, err)
		}
	}
	if got, err := w.s.ExpiredFiles(at(1000), 1); err != nil || len(got) != 1 || got[0].ID != "f1" {
		t.Errorf("the first: %+v, %v", got, err)
	}
}

func TestTheStoreStaysWhileThereAreFiles(t *testing.T) {
	w := newWorld(t).settle()
	w.must(PutObjectStore{sampleStore()}, keeps(resultFile("f1", 1)))
	elsewhere, keys := sampleStore(), sampleStore()
	elsewhere.Bucket, keys.AccessKey, keys.AllBytes = "other", "new", 1000
	w.refused(fleet.CodeInUse, PutObjectStore{elsewhere})
	w.refused(fleet.CodeInUse, PutObjectStore{})
	w.must(PutObjectStore{keys}, DropFiles{Files: []fleet.ResultFile{resultFile("f1", 1)}}, PutObjectStore{elsewhere}, PutObjectStore{})
	w.view(func(v *View) {
		if _, ok := v.ObjectStore(); ok {
			t.Error("it was not taken away")
		}
	})
	with := func(change func(*fleet.ObjectStore)) error {
		s := sampleStore()
		change(&s)
		return checkStore(&s)
	}
	checkBounds(t, []bound{
		{"no region", with(func(s *fleet.ObjectStore) { s.Region = "" }), "$.region"},
		{"a long bucket", with(func(s *fleet.ObjectStore) { s.Bucket = long(maxStoreText + 1) }), "$.bucket"},
		{"no key", with(func(s *fleet.ObjectStore) { s.AccessKey = "" }), "$.accessKey"},
		{"a long prefix", with(func(s *fleet.ObjectStore) { s.Prefix = long(maxStoreText + 1) }), "$.prefix"},
		{"no secret", with(func(s *fleet.ObjectStore) { s.Sealed = nil }), "$.secret"},
		{"no room", with(func(s *fleet.ObjectStore) { s.AccountBytes = 0 }), "$.accountGb"},
		{"no room in all", with(func(s *fleet.ObjectStore) { s.AllBytes = maxStoreBytes + 1 }), "$.allGb"},
	})
}
