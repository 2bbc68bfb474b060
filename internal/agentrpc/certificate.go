package agentrpc

import (
	"slices"
	"strings"
	"time"

	"gantry/fleet"
	"gantry/internal/pki"
)

// What of a node's word on its certificate is kept.
const (
	maxTrusts = 4
	maxDigest = 64 // bytes
)

// OwnCertificate is what the holder of a store tells of it; zero: it has not joined.
func OwnCertificate(store *pki.Store) (out fleet.NodeCertificate) {
	leaf, ca, trusted, err := store.Current()
	if err != nil {
		return out
	}
	out.CA, out.EndsAt = pki.DigestOf(ca).String(), leaf.NotAfter.UTC()
	for _, t := range trusted {
		out.Trusts = append(out.Trusts, pki.DigestOf(t).String())
	}
	slices.Sort(out.Trusts)
	return out
}

// EncodeCertificate is what is told of a node's certificate; nil: nothing.
func EncodeCertificate(c fleet.NodeCertificate) *NodeCertificate {
	if c.CA == "" {
		return nil
	}
	return &NodeCertificate{Ca: c.CA, Trusts: c.Trusts, Ends: c.EndsAt.Unix()}
}

// DecodeCertificate reads what a node tells of its certificate. What cannot be meant is left out.
func DecodeCertificate(in *NodeCertificate) (out fleet.NodeCertificate) {
	digest := func(s string) bool {
		return s != "" && len(s) <= maxDigest && strings.Trim(s, "0123456789abcdef") == ""
	}
	if digest(in.GetCa()) {
		out.CA = in.GetCa()
	}
	for _, t := range in.GetTrusts() {
		if digest(t) && len(out.Trusts) < maxTrusts {
			out.Trusts = append(out.Trusts, t)
		}
	}
	slices.Sort(out.Trusts)
	if ends := in.GetEnds(); ends > 0 && ends < 1<<37 { // the state holds no year above 9999
		out.EndsAt = time.Unix(ends, 0).UTC()
	}
	return out
}
