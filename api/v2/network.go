package v2

// Network is a private network of the account.
type Network struct {
	ID      string          `json:"id" doc:"Network identifier; that of global networking is the account's, after account-." example:"account-a5f8k2m7q1w4z9"`
	CIDR    string          `json:"cidr" doc:"Range of its addresses. Another account's may be the same: no packet gets from one into the other." example:"10.65.0.0/16"`
	VXLANID int64           `json:"vxlanId" doc:"VXLAN network identifier, which no other network has." minimum:"1" maximum:"16777215" example:"4096"`
	Suffix  string          `json:"suffix" doc:"What the internal names of its pods end with." example:"gantry.internal"`
	Members []NetworkMember `json:"members" doc:"Pods that take part and are on a host now, by address."`
}

// NetworkMember is a pod in a private network.
type NetworkMember struct {
	PodID       string `json:"podId" doc:"Pod identifier." example:"k3n8w0zq5r7d2a"`
	Name        string `json:"name" doc:"Name of the pod. With the suffix it is an internal name, too, where it can be one and no other member has it." example:"trainer"`
	IP          string `json:"ip" doc:"Its address there." example:"10.65.0.2"`
	InternalDNS string `json:"internalDns" doc:"Its internal name." example:"k3n8w0zq5r7d2a.gantry.internal"`
}

// NetworkList is the answer to listing private networks.
type NetworkList struct {
	Page
	Networks []Network `json:"networks" doc:"The account's private networks; none before the first pod joined one."`
}

// Probe is one look from a pod to another.
type Probe struct {
	From    string   `json:"from" doc:"Pod that looked." example:"k3n8w0zq5r7d2a"`
	To      string   `json:"to" doc:"Pod that was to answer." example:"m5p1x7rt2v9b4c"`
	IP      string   `json:"ip" doc:"Address of that pod." example:"10.65.0.3"`
	OK      bool     `json:"ok" doc:"Whether it answered."`
	Millis  *float64 `json:"ms" doc:"Milliseconds of the fastest answer of three; null without one." minimum:"0" example:"0.4"`
	Problem Text     `json:"problem" doc:"Why there was no answer, in a sentence; null with one."`
}

// NetworkCheck is the answer to a check of an account's private networks.
type NetworkCheck struct {
	Probes []Probe `json:"probes" doc:"What each running pod of a private network found."`
}
