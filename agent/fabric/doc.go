// Package fabric knows the RDMA devices of the host, InfiniBand and RoCE, and passes them into members of clusters: all members use the same
// devices, or each has virtual functions of its own. It never passes a device for management, and it changes no adapter.
//
// A member's functions are written down before they are moved into its network namespace, and until they are back. So no function is two
// members', whenever the agent ends. A function that is not the host's at present, since a container has it that nobody knows, is not given
// away either.
package fabric
