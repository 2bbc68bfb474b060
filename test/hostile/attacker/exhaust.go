package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// tables are what the kernel has for all. Each takes the n-th entry and keeps it.
var tables = map[string]func(n int) error{
	"inotify":   func(int) error { _, err := unix.InotifyInit1(0); return err },
	"watches":   watch,
	"sockets":   func(int) error { _, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0); return err },
	"pairs":     func(int) error { _, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0); return err },
	"files":     func(int) error { _, err := unix.Open("/", unix.O_RDONLY, 0); return err },
	"signals":   func(int) error { return timer() },
	"crowds":    func(int) error { return exec.Command("/evil/attacker", "take", "files", "2000000").Start() },
	"terminals": func(int) error { _, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY, 0); return err },
	"programs":  func(int) error { return exec.Command("sleep", "3600").Start() },
}

// take takes up to most of a table, says how many there were, and keeps them.
func take(table string, most int) {
	time.Sleep(time.Millisecond) // the runtime opens now what it needs to sleep later
	got := 0
	for ; got < most; got++ {
		if err := tables[table](got); err != nil {
			fmt.Printf("%s %d: %v\n", table, got, err)
			break
		}
	}
	fmt.Printf("took %d of %s.\n", got, table)
	time.Sleep(time.Hour)
}

// have takes a number of each table, one after the other, and says what it did not get.
func have(words []string) {
	for i := 0; i+1 < len(words); i += 2 {
		most, _ := strconv.Atoi(words[i+1])
		for n := range most {
			if err := tables[words[i]](n); err != nil {
				fmt.Printf("%s: %d of %d: %v\n", words[i], n, most, err)
				os.Exit(1)
			}
		}
	}
	fmt.Println("has all")
}

var watcher = -1

// watch watches one more file.
func watch(n int) error {
	var err error
	if watcher < 0 {
		if watcher, err = unix.InotifyInit1(0); err != nil {
			return err
		}
	}
	path := filepath.Join("/tmp", "watched-"+strconv.Itoa(n))
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		return err
	}
	_, err = unix.InotifyAddWatch(watcher, path, unix.IN_MODIFY)
	return err
}

// timer makes one that has a signal waiting from the first on.
func timer() error {
	var id int32
	_, _, errno := unix.Syscall(unix.SYS_TIMER_CREATE, unix.CLOCK_MONOTONIC, 0, uintptr(unsafe.Pointer(&id)))
	if errno != 0 {
		return errno
	}
	return nil
}
