// Package disk gives containers disks of a limited size on the host's file system. What enforces the limit
// is one of several mechanisms, chosen by what the host offers:
//
//   - project: a folder with a project quota (ext4 and xfs)
//   - loop: a file with a file system of its own, mounted through a loop device
//   - none: a plain folder that nothing limits
//
// A disk is known by its name, which is unique in its pool. What a disk holds is hostile: no link in it is followed.
package disk
