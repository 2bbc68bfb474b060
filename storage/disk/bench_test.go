package disk

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

var benchKinds = append(kinds, struct {
	name      string
	mechanism string
	direct    bool
	full      error
}{"none", None, false, nil})

// BenchmarkMake makes new disks of 20 GB.
func BenchmarkMake(b *testing.B) {
	for _, k := range benchKinds {
		b.Run(k.name, func(b *testing.B) {
			p := openPool(b, k.mechanism, k.direct)
			n := 0
			for b.Loop() {
				if _, err := p.Make(b.Context(), fmt.Sprint("d", n), 20); err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				must(b, p.Remove(b.Context(), fmt.Sprint("d", n)))
				b.StartTimer()
				n++
			}
		})
	}
}

// BenchmarkRemove removes disks that hold some files.
func BenchmarkRemove(b *testing.B) {
	for _, k := range benchKinds {
		b.Run(k.name, func(b *testing.B) {
			p := openPool(b, k.mechanism, k.direct)
			for b.Loop() {
				b.StopTimer()
				dir, err := p.Make(b.Context(), "d", 20)
				must(b, err)
				for i := range 100 {
					must(b, os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), make([]byte, 10_000), 0o600))
				}
				b.StartTimer()
				if err := p.Remove(b.Context(), "d"); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkWrite writes and syncs files of 256 MB; none is the bare folder.
func BenchmarkWrite(b *testing.B) {
	block := make([]byte, 1<<20)
	for i := range block {
		block[i] = byte(i)
	}
	for _, k := range benchKinds {
		b.Run(k.name, func(b *testing.B) {
			p := openPool(b, k.mechanism, k.direct)
			dir, err := p.Make(b.Context(), "d", 5)
			must(b, err)
			b.SetBytes(256 << 20)
			for b.Loop() {
				f, err := os.Create(filepath.Join(dir, "f"))
				must(b, err)
				for range 256 {
					_, err := f.Write(block)
					must(b, err)
				}
				must(b, f.Sync())
				must(b, f.Close())
			}
		})
	}
}

// BenchmarkDelete removes 2000 small files from a disk.
func BenchmarkDelete(b *testing.B) {
	for _, k := range benchKinds {
		b.Run(k.name, func(b *testing.B) {
			p := openPool(b, k.mechanism, k.direct)
			dir, err := p.Make(b.Context(), "d", 5)
			must(b, err)
			for b.Loop() {
				b.StopTimer()
				at := filepath.Join(dir, "many")
				must(b, os.Mkdir(at, 0o755))
				for i := range 2000 {
					must(b, os.WriteFile(filepath.Join(at, fmt.Sprint(i)), block4k, 0o600))
				}
				b.StartTimer()
				must(b, os.RemoveAll(at))
			}
		})
	}
}

var block4k = make([]byte, 4096)
