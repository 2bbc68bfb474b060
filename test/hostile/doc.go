// Package hostile runs images and processes that want out of their container, or want more than their share, on real
// containerd, kernels and disks, and checks that the host and its other pods do not notice. docs/security.md says which
// layer stops what.
package hostile
