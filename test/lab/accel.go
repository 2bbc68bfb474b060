package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

const kvm = "/dev/kvm"

var (
	// software leaves out what costs an emulated processor time and shows nothing: tables of five levels, and guards of the kernel against itself.
	// And cmpxchg16b: QEMU 7.2 leaves nonsense in the flags after it, of which a kernel 6.12 dies in one boot of four.
	software = []string{"-accel", "tcg,thread=multi", "-cpu", "max,cx16=off,la57=off,smap=off,smep=off,umip=off,pku=off,svm=off"}
	hardware = []string{"-accel", "kvm", "-cpu", "host"}
)

// accelerate says how machines run here: by this machine's processor, if the kernel gets as far as to look for its disk that way within seconds, else
// in software. That there is a device for it proves nothing: a kernel may hang under it.
func (l *lab) accelerate(ctx context.Context) error {
	image, err := l.image(l.plan.machines[0].System)
	if err != nil {
		return err
	}
	l.accel = software
	device, err := os.OpenFile(kvm, os.O_RDWR, 0)
	if err != nil {
		l.log("software emulation: %v", err)
		return nil
	}
	_ = device.Close()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	args := append([]string{
		"-nodefaults", "-display", "none", "-no-reboot", "-m", "512", "-serial", "stdio",
		"-kernel", filepath.Join(image, "vmlinuz"), "-append", "console=ttyS0 panic=-1",
	}, hardware...)
	out, _ := exec.CommandContext(ctx, emulator, args...).CombinedOutput()
	if !bytes.Contains(out, []byte("Unable to mount root fs")) {
		l.log("software emulation: no kernel boots with %s", kvm)
		return nil
	}
	l.log("the machines run by %s", kvm)
	l.accel = hardware
	return nil
}
