package state

import "gantry/scheduler/state/table"

// Event says that a thing changed; see table.Event.
type Event = table.Event

// Kind is what an event is about.
type Kind = table.Kind

// The kinds, and what an event's ID is.
const (
	KindPod     Kind = iota + 1 // a pod's record; pod id
	KindHost                    // a host's record; host id
	KindAssign                  // a host's assignments; host id
	KindKey                     // a key; key id
	KindAccount                 // an account, or its templates, credentials, SSH keys and volumes; account id
	KindCatalog                 // a data center (its id) or the catalog (empty)
	KindMember                  // a member of the control plane (its id), or its identity and level (empty)
	KindStorage                 // a backend of network volumes, or what is to be done for volumes on it; backend id
	KindNetwork                 // an overlay's members (its id), or the settings of private networks (empty)
	KindGateway                 // a gateway's record; gateway id
)
