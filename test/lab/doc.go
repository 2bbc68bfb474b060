// Command lab boots three whole machines under QEMU, installs the packages on them with the playbooks of deploy/ansible, in the
// words of docs/install.md, and uses the cluster. README.md tells how, and what it shows.
package main
