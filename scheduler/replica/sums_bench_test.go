package replica

import (
	"bytes"
	"testing"

	"github.com/hashicorp/raft"
)

// BenchmarkOpenLog reads and checks a log of 100 000 entries of 1 KB, as Open does.
func BenchmarkOpenLog(b *testing.B) {
	dir := b.TempDir()
	logs, err := openLog(dir)
	if err != nil {
		b.Fatal(err)
	}
	data := bytes.Repeat([]byte("x"), 1024)
	for i := range uint64(100) {
		var batch []*raft.Log
		for j := range uint64(1000) {
			batch = append(batch, &raft.Log{Index: i*1000 + j + 1, Term: 1, Data: data})
		}
		if err := logs.StoreLogs(batch); err != nil {
			b.Fatal(err)
		}
	}
	if err := logs.SetUint64([]byte(keyTerm), 1); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if err := logs.Close(); err != nil {
			b.Fatal(err)
		}
		if logs, err = openLog(dir); err != nil {
			b.Fatal(err)
		}
	}
	if err := logs.Close(); err != nil {
		b.Fatal(err)
	}
}
