package state

import "gantry/fleet"

func (c PutBackend) apply(t *txn) (any, error) { return nil, fleet.Unavailable("not built", nil) }

func (c DeleteBackend) apply(t *txn) (any, error) { return nil, fleet.Unavailable("not built", nil) }

func (c ReportVolumes) apply(t *txn) (any, error) { return nil, fleet.Unavailable("not built", nil) }

func (c SetHostRoles) apply(t *txn) (any, error) { return nil, fleet.Unavailable("not built", nil) }

func (c PutS3Key) apply(t *txn) (any, error) { return nil, fleet.Unavailable("not built", nil) }

func (c DeleteS3Key) apply(t *txn) (any, error) { return nil, fleet.Unavailable("not built", nil) }
