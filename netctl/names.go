package netctl

import (
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

const (
	linkHash  = 9 // "gn" + 4 digits + 9 = 15, the longest name of a link
	maxPodID  = 64
	markWords = 7
	markLead  = "gantry"
	markForm  = "1"
)

// BridgeName names the bridge of an instance. It is also the prefix of the names
// of all its links.
func BridgeName(instance string) string { return "gn" + instance }

// LinkName names the host's end of a pod's link: the bridge's name and 45 bits
// of a hash of the pod's id, 15 characters in all.
func LinkName(instance, pod string) string {
	sum := sha256.Sum256([]byte(pod))
	text := strings.ToLower(base32.StdEncoding.EncodeToString(sum[:]))
	return BridgeName(instance) + text[:linkHash]
}

// TableName names the instance's nftables tables (one in family inet, one in
// family bridge).
func TableName(instance string) string { return "gantry_" + instance }

// NamespacePrefix starts the names of all network namespaces of an instance.
func NamespacePrefix(instance string) string { return "gantry-" + instance + "-" }

// NamespaceName names a pod's network namespace, as `ip netns` shows it.
func NamespaceName(instance, pod string) string { return NamespacePrefix(instance) + pod }

// MACFor derives a locally administered unicast hardware address from an IPv4
// address, so that an address which is used again keeps its neighbour entries true.
// Anything but an IPv4 address gives "".
func MACFor(addr netip.Addr) string {
	if !addr.Is4() {
		return ""
	}
	b := addr.As4()
	return fmt.Sprintf("0a:58:%02x:%02x:%02x:%02x", b[0], b[1], b[2], b[3])
}

// Mark is the text that a finished pod's link carries in the kernel: everything
// from which the pod's network was built, so that a successor finds out whose it is,
// and whether it is still right, without any file. Pod.IDBase is not part of it, but
// the link's group: agents that do not know it read the same mark.
func Mark(host Config, pod Pod) string {
	place := netip.PrefixFrom(pod.Addr, host.Subnet.Bits())
	return strings.Join([]string{markLead, markForm, host.Instance, pod.ID, place.String(), pod.MAC, strconv.Itoa(host.MTU)}, " ")
}

// ParseMark reads a Mark into the pod and the host's instance, subnet and MTU. It
// accepts exactly what Mark writes for valid values.
func ParseMark(text string) (host Config, pod Pod, err error) {
	words := strings.Split(text, " ")
	if len(words) != markWords || words[0] != markLead || words[1] != markForm {
		return Config{}, Pod{}, errors.New("mark: not a mark of this form")
	}
	place, err := netip.ParsePrefix(words[4])
	if err != nil {
		return Config{}, Pod{}, errors.New("mark: place: not an address with a length")
	}
	mtu, err := strconv.Atoi(words[6])
	if err != nil {
		return Config{}, Pod{}, errors.New("mark: mtu: not a number")
	}
	pod = Pod{ID: words[3], Namespace: NamespaceName(words[2], words[3]), Addr: place.Addr(), MAC: words[5]}
	host = Config{Instance: words[2], Subnet: place.Masked(), MTU: mtu}
	if err := host.With(pod).Validate(); err != nil {
		return Config{}, Pod{}, fmt.Errorf("mark: %w", err)
	}
	if Mark(host, pod) != text {
		return Config{}, Pod{}, errors.New("mark: not in canonical form")
	}
	return host, pod, nil
}

// PlaceMark is what Mark is for a pod's link in an overlay: it says whose the link is, and all from which it was built.
func PlaceMark(instance, pod string, bits, mtu int, at Place) string {
	return fmt.Sprintf("%s 1 %s %s overlay %d %s %s %s %d", markLead, instance, pod, at.VNI, netip.PrefixFrom(at.Addr, bits), at.MAC, at.Link, mtu)
}

// ParsePlaceMark reads a PlaceMark into the instance, the pod's id and its place.
func ParsePlaceMark(text string) (instance, pod string, at Place, err error) {
	var lead, place string
	var form, mtu int
	_, err = fmt.Sscanf(text, "%s %d %s %s overlay %d %s %s %s %d", &lead, &form, &instance, &pod, &at.VNI, &place, &at.MAC, &at.Link, &mtu)
	if err != nil {
		return "", "", Place{}, errors.New("mark: not that of a place")
	}
	p, err := netip.ParsePrefix(place)
	if at.Addr = p.Addr(); err != nil || PlaceMark(instance, pod, p.Bits(), mtu, at) != text || CheckInstance(instance) != nil || CheckPodID(pod) != nil || at.check() != nil {
		return "", "", Place{}, errors.New("mark: not a valid place")
	}
	return instance, pod, at, nil
}

// OverlayMark is the text that an overlay's bridge carries in the kernel.
func OverlayMark(instance string, o Overlay) string {
	return fmt.Sprintf("%s 1 %s overlay %d %s", markLead, instance, o.VNI, o.CIDR)
}

// ParseOverlayMark reads an OverlayMark.
func ParseOverlayMark(text string) (instance string, o Overlay, err error) {
	words := strings.Split(text, " ")
	if len(words) != 6 {
		return "", Overlay{}, errors.New("mark: not that of an overlay")
	}
	vni, err := strconv.ParseUint(words[4], 10, 24)
	if err != nil {
		return "", Overlay{}, errors.New("mark: overlay: not a number")
	}
	o.VNI, instance = uint32(vni), words[2]
	if o.CIDR, err = netip.ParsePrefix(words[5]); err != nil || OverlayMark(instance, o) != text || o.check() != nil || CheckInstance(instance) != nil {
		return "", Overlay{}, errors.New("mark: not a valid overlay")
	}
	return instance, o, nil
}

// CheckInstance says what is wrong with an instance's name.
func CheckInstance(s string) error {
	if len(s) != 4 || strings.Trim(s, "0123456789abcdef") != "" {
		return errors.New("instance: want 4 lower-case hexadecimal digits")
	}
	return nil
}

// CheckPodID says what is wrong with a pod's id.
func CheckPodID(id string) error {
	if id == "" || len(id) > maxPodID {
		return fmt.Errorf("id: want 1 to %d characters", maxPodID)
	}
	for i := range len(id) {
		c := id[i]
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !letter && (i == 0 || c != '-' && c != '_') {
			return errors.New("id: want letters and digits, after the first also - and _")
		}
	}
	return nil
}
