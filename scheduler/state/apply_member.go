package state

import "errors"

var errNotBuilt = errors.New("not built yet")

func (c PutMember) apply(t *txn) (any, error) { return nil, errNotBuilt }

func (c JoinMember) apply(t *txn) (any, error) { return nil, errNotBuilt }

func (c RemoveMember) apply(t *txn) (any, error) { return nil, errNotBuilt }

func (c RaiseLevel) apply(t *txn) (any, error) { return nil, errNotBuilt }

func (c RestoreCluster) apply(t *txn) (any, error) { return nil, errNotBuilt }

func (c SetHostDuty) apply(t *txn) (any, error) { return nil, errNotBuilt }

func (c SetHostLabels) apply(t *txn) (any, error) { return nil, errNotBuilt }

func (c FenceHost) apply(t *txn) (any, error) { return nil, errNotBuilt }

func (c RemoveHost) apply(t *txn) (any, error) { return nil, errNotBuilt }

func (c PurgeHosts) apply(t *txn) (any, error) { return nil, errNotBuilt }

func (c AlarmHost) apply(t *txn) (any, error) { return nil, errNotBuilt }

func (c MovePod) apply(t *txn) (any, error) { return nil, errNotBuilt }
