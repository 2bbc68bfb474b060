// Package containerfs is what the agent does inside of a running container: it names the processes that
// are started there, and it reads and writes files below the container's root.
//
// The agent is root on the host and the container is hostile. Files are therefore reached from an
// open handle of the container's root alone, each path with openat2: links and ".." are resolved as
// the container sees them, and what lies below a folder is reached name by name without following
// any link. An object is looked at through an O_PATH handle before it is opened, so that no device,
// pipe or socket ever is; owner, mode and times are set through handles, never through a path. File
// systems that are interfaces of the kernel (proc, sysfs, cgroup and their like) are refused wherever
// they are mounted. Nothing that runs in the container can change any of this: it can swap names
// under us, and the worst is that something else of the same container is read or replaced.
//
// Owners are those that the container sees, also when it has a user namespace and the host's are others.
//
// Nothing is written to file systems in memory: the kernel would count it as memory of the agent, and
// not against the container's bound. Nothing is written that did not arrive, either: an archive cannot
// say of a file that it is larger than what comes of it.
//
// Memory is bounded: a folder is read in pieces, and only its levels are held, not its entries.
package containerfs
