package fleet

// NetworkView is a private network as its account sees it.
type NetworkView struct {
	Overlay Overlay
	Suffix  string // of the members' names
	// Members are the pods that a host holds in the network now, by address.
	Members []OverlayMember
}

// InternalDNS is the name of a pod under a suffix.
func InternalDNS(pod PodID, suffix string) string { return string(pod) + "." + suffix }

// AccountPlace returns the pod's place in its account's network; false: its present incarnation takes no part in it.
func (p *Pod) AccountPlace() (OverlayPlace, bool) {
	for _, at := range p.Overlays {
		if at.Overlay == AccountOverlay(p.Account) && at.On {
			return at, true
		}
	}
	return OverlayPlace{}, false
}
