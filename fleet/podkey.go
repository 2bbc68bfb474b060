package fleet

import (
	"math/big"
	"strings"
)

// A pod's own key is "gk_", the pod's id and podKeyChars of base62 made from a MAC: it has the form of an API key.
const podKeyChars = keyChars - IDLength

// PodKey returns the text of a pod's own key. mac must be a MAC of the pod's id of at least 22 bytes that only the
// control plane can make.
func PodKey(id PodID, mac []byte) Secret {
	var n, digit big.Int
	n.SetBytes(mac)
	base := big.NewInt(int64(len(base62)))
	out := make([]byte, podKeyChars)
	for i := range out {
		n.DivMod(&n, base, &digit)
		out[i] = base62[digit.Int64()]
	}
	return Secret(keyPrefix + string(id) + string(out))
}

// PodOfKey returns the pod that a key may be the own one of; false when its form rules that out.
func PodOfKey(key string) (PodID, bool) {
	rest, ok := strings.CutPrefix(key, keyPrefix)
	if !ok || !ValidAPIKey(key) || !ValidID(rest[:IDLength]) {
		return "", false
	}
	return PodID(rest[:IDLength]), true
}
