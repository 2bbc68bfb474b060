package state

import (
	"cmp"
	"crypto/sha256"
	"crypto/subtle"

	"gantry/fleet"
	"gantry/scheduler/state/table"
)

// maxLineage bounds lineages, so that what is counted within one never wraps round.
const maxLineage = maxGeneration >> (lineageBits + 1)

// cluster reads the cluster's record, to change it.
func (t *txn) cluster() (Cluster, error) {
	c := t.base.cluster.Get(t.Txn, onlyKey)
	if c == nil {
		return Cluster{}, fleet.NotFound("cluster")
	}
	return *c, nil
}

// checkRole refuses a join token that makes nothing of its holder.
func (t *txn) checkRole(token *fleet.JoinToken) error {
	switch {
	case token.Role == fleet.TokenHost:
		return checkID("$.dataCenter", string(token.DataCenter))
	case token.Role == fleet.TokenGateway && token.DataCenter != "" && t.base.centers.Get(t.Txn, token.DataCenter) == nil:
		return fleet.NotFound("data center")
	case token.Role == fleet.TokenGateway:
		return nil
	case token.Role != fleet.TokenScheduler:
		return fleet.Invalid("$.role", "must be that of a host, of a scheduler or of a gateway")
	case token.Replaces != "" && t.base.members.Get(t.Txn, token.Replaces) == nil:
		return fleet.Invalid("$.replaces", "is no member of the control plane")
	}
	return nil
}

// useToken checks what joins with a token and returns it. It is the caller's to burn.
func (t *txn) useToken(id fleet.TokenID, role fleet.TokenRole, good func(*fleet.JoinToken) bool) (*fleet.JoinToken, error) {
	token := t.base.tokens.Get(t.Txn, id)
	// One answer for all: who tries tokens learns nothing.
	if token == nil || token.Role != role || token.Joined != "" || !good(token) {
		return nil, &fleet.Error{Code: fleet.CodeUnauthorized, Msg: "the join token is unknown, used or expired"}
	}
	return token, nil
}

// burn makes a token useless, but for the request that it was used for.
func (t *txn) burn(old *fleet.JoinToken, request []byte, joined string) error {
	switch len(request) {
	case 0:
		t.base.tokens.Drop(t.Txn, old.ID)
	case sha256.Size:
		token := *old
		token.Request, token.Joined = request, joined
		t.base.tokens.Put(t.Txn, token.ID, &token)
	default:
		return fleet.Invalid("$.request", "must have 32 bytes")
	}
	return nil
}

func sameHash(a, b []byte) bool { return subtle.ConstantTimeCompare(a, b) == 1 }

// checkMember refuses a record that no member can have.
func checkMember(m *fleet.Member) error {
	err := cmp.Or(checkID("$.id", string(m.ID)), checkID("$.address", m.Address))
	switch {
	case err != nil:
		return err
	case len(m.Name) > maxID || len(m.Version) > maxID:
		return fleet.Invalid("$.name", "must have at most 256 bytes, and so must the version")
	case !m.RemovedAt.IsZero():
		return fleet.Invalid("$.removedAt", "must not be set")
	}
	return nil
}

// putMember writes a member's record.
func (t *txn) putMember(m fleet.Member) fleet.Member {
	t.base.members.Put(t.Txn, m.ID, &m)
	t.Note(KindMember, string(m.ID))
	return m
}

func (c PutMember) apply(t *txn) (any, error) {
	if err := checkMember(&c.Member); err != nil {
		return nil, err
	}
	if old := t.base.members.Get(t.Txn, c.Member.ID); old != nil && !old.RemovedAt.IsZero() {
		return nil, fleet.NotAllowed("the member was removed; it can join again under a new identity")
	}
	t.putMember(c.Member)
	return nil, nil
}

func (c JoinMember) apply(t *txn) (any, error) {
	token, err := t.useToken(c.Token, fleet.TokenScheduler, func(k *fleet.JoinToken) bool {
		return !expired(k, c.At) && sameHash(k.Hash, c.Hash)
	})
	if err != nil {
		return nil, err
	}
	cluster, err := t.cluster()
	if err != nil {
		return nil, err
	}
	in := c.Member
	if err := checkMember(&in); err != nil {
		return nil, err
	}
	switch {
	case t.base.members.Get(t.Txn, in.ID) != nil:
		return nil, exists("there is a member with this id")
	case in.Level < cluster.Level:
		return nil, fleet.BreaksRule("the program of the new member is too old: it understands feature level %d, the cluster is at %d",
			in.Level, cluster.Level)
	}
	if err := t.burn(token, c.Request, string(in.ID)); err != nil {
		return nil, err
	}
	return t.putMember(fleet.Member{
		ID: in.ID, Name: in.Name, Address: in.Address, NonVoter: token.NonVoter, Level: in.Level, Version: in.Version,
		JoinedAt: in.JoinedAt, Replaces: token.Replaces,
	}), nil
}

func (c RemoveMember) apply(t *txn) (any, error) {
	old := t.base.members.Get(t.Txn, c.Member)
	if old == nil {
		return nil, fleet.NotFound("member")
	}
	if !old.RemovedAt.IsZero() {
		return nil, nil
	}
	if c.At.IsZero() {
		return nil, fleet.Invalid("$.at", "must be set")
	}
	member := *old
	member.RemovedAt = c.At
	t.putMember(member)
	return nil, nil
}

func (c RestoreCluster) apply(t *txn) (any, error) {
	cluster, err := t.cluster()
	if err != nil {
		return nil, err
	}
	if err := cmp.Or(checkID("$.clusterId", c.ID), checkMember(&c.Member)); err != nil {
		return nil, err
	}
	switch {
	case c.Lineage <= cluster.Lineage:
		return nil, fleet.Stale("the lineage is not above that of the copy")
	case c.Lineage > maxLineage:
		return nil, fleet.Invalid("$.lineage", "is too large")
	case c.At.IsZero():
		return nil, fleet.Invalid("$.at", "must be set")
	case t.base.members.Get(t.Txn, c.Member.ID) != nil:
		return nil, exists("there is a member with this id")
	}
	cluster.ID, cluster.Lineage, cluster.RestoredAt, cluster.SnapshotAt = c.ID, c.Lineage, c.At, c.SnapshotAt
	t.base.cluster.Put(t.Txn, onlyKey, &cluster)
	t.Note(KindMember, "")
	for _, id := range t.base.members.Keys(t.Txn, 0, table.All) {
		if old := *t.base.members.Get(t.Txn, id); old.RemovedAt.IsZero() {
			old.RemovedAt = c.At
			t.putMember(old)
		}
	}
	for _, id := range t.base.tokens.Keys(t.Txn, 0, table.All) {
		t.base.tokens.Drop(t.Txn, id) // it may have been used since the copy was made
	}
	for _, id := range t.base.pods.Keys(t.Txn, 0, table.All) {
		t.leaveMove(*t.base.pods.Get(t.Txn, id))
		t.leaveReturn(*t.base.pods.Get(t.Txn, id))
	}
	for _, id := range t.base.volumes.Keys(t.Txn, 0, table.All) {
		t.remeasure(*t.base.volumes.Get(t.Txn, id))
	}
	t.skipBases()
	t.skipNetworks()
	t.putMember(c.Member)
	return nil, nil
}
