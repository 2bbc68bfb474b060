// Package nfslab runs test binaries of this module in a virtual machine whose kernel is Debian's, with an NFS server, an NFS
// client and project quotas, which the kernel of a development machine may lack. The machine is emulated in software. Its
// whole system is an archive in memory, made anew for each run: this module's tests, a program that starts them, the modules of the
// kernel and the few programs that they need. It is up within seconds.
//
// Tests that are meant for it stand in files with the build tag guest. They run as root, one package after the other, and may
// change the machine as they like.
package nfslab
