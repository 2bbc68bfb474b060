package scheduler

import (
	"context"

	"gantry/fleet"
	"gantry/scheduler/files"
	"gantry/scheduler/state"
)

// ObjectStore returns the store of results' files; one without an endpoint: there is none.
func (s *Service) ObjectStore(ctx context.Context) (out fleet.ObjectStoreView, err error) {
	err = s.read(ctx, func(v *state.View) error { out, _ = v.ObjectStore(); return nil })
	out.Sealed = nil
	return out, err
}

// PutObjectStore replaces the store of results' files; an empty secret stays as it is, for the same access key. Errors: invalid, in_use
// (files are where the store was).
func (s *Service) PutObjectStore(ctx context.Context, store fleet.ObjectStore, secret fleet.Secret) (fleet.ObjectStoreView, error) {
	if secret == "" {
		err := s.read(ctx, func(v *state.View) error {
			if old, ok := v.ObjectStore(); ok && old.AccessKey == store.AccessKey {
				opened, err := files.OpenSecret(s.Sealer, &old.ObjectStore)
				secret = opened
				return err
			}
			return fleet.Invalid("$.secret", "is needed for a new access key")
		})
		if err != nil {
			return fleet.ObjectStoreView{}, err
		}
	}
	if err := files.Seal(s.Sealer, &store, secret); err != nil {
		return fleet.ObjectStoreView{}, err
	}
	if _, err := propose[fleet.ObjectStore](ctx, s, state.PutObjectStore{Store: store}); err != nil {
		return fleet.ObjectStoreView{}, err
	}
	s.Log.Info("object storage set", "endpoint", store.Endpoint, "bucket", store.Bucket)
	return s.ObjectStore(ctx)
}

// DeleteObjectStore takes the store of results' files away. Errors: in_use (there are files).
func (s *Service) DeleteObjectStore(ctx context.Context) error {
	return s.operate(ctx, "object storage taken away", "bucket", "", state.PutObjectStore{})
}
