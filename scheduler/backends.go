package scheduler

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"

	"gantry/fleet"
	"gantry/scheduler/state"
)

// purposeBackend begins the purpose under which the keys of a backend are sealed; its id follows.
const purposeBackend = "volume backend"

func backendPurpose(id fleet.BackendID) string { return purposeBackend + "\x00" + string(id) }

// sealedBackend is what lies in Backend.Sealed.
type sealedBackend struct {
	Key      string `json:"key"`
	AdminKey string `json:"adminKey"`
}

// cephKey is the form of a key of Ceph, which is written into files of lines.
var cephKey = regexp.MustCompile(`^[A-Za-z0-9+/=]{1,256}$`)

// Backends lists the backends of network volumes by id.
func (s *Service) Backends(ctx context.Context) ([]fleet.BackendView, error) {
	out := []fleet.BackendView{}
	err := s.read(ctx, func(v *state.View) error {
		for _, b := range v.Backends() {
			out = append(out, s.backendView(v, b))
		}
		return nil
	})
	return out, err
}

// Backend returns a backend of network volumes.
func (s *Service) Backend(ctx context.Context, id fleet.BackendID) (fleet.BackendView, error) {
	var out fleet.BackendView
	err := s.read(ctx, func(v *state.View) error {
		b, ok := v.Backend(id)
		if !ok {
			return fleet.NotFound("storage backend")
		}
		out = s.backendView(v, b)
		return nil
	})
	return out, err
}

// backendView adds what is not stored, and leaves out what nobody is shown.
func (s *Service) backendView(v *state.View, b fleet.Backend) fleet.BackendView {
	b.Sealed = nil
	out := fleet.BackendView{Backend: b, Host: s.Storage.StorageHost(b.ID)}
	out.Volumes, out.SizeGB = v.BackendUse(b.ID)
	switch {
	case out.Host != "":
		for _, volume := range v.StorageWork(b.ID) {
			if _, problem := s.Storage.SeenVolume(volume.ID); problem != "" {
				out.Problem = "network volume " + string(volume.ID) + ": " + problem
				break
			}
		}
	case b.StorageHost != "":
		out.Problem = fmt.Sprintf("the host %s, which is to look after it, is not connected, or does not have the role storage", b.StorageHost)
	default:
		out.Problem = fmt.Sprintf("no host of the data center %s is connected that has the role storage and can mount %s", b.DataCenter, b.Kind)
	}
	return out
}

// CreateBackend makes a backend of network volumes. Errors: exists, not_found (data center, host), invalid, rule.
func (s *Service) CreateBackend(
	ctx context.Context, b fleet.Backend, secrets fleet.BackendSecrets,
) (fleet.BackendView, error) {
	b.CreatedAt, b.Rev = s.Now(), 0
	if err := s.sealBackend(&b, secrets); err != nil {
		return fleet.BackendView{}, err
	}
	return s.putBackend(ctx, state.PutBackend{Backend: b, New: true})
}

// UpdateBackend changes a backend of network volumes: all of it but its secrets is replaced, and a secret that is not
// given stays. Errors: not_found, invalid, rule (where its data is cannot change while volumes are on it).
func (s *Service) UpdateBackend(
	ctx context.Context, b fleet.Backend, secrets fleet.BackendSecrets,
) (fleet.BackendView, error) {
	return untilFresh(ctx, func() (fleet.BackendView, error) {
		next := b
		err := s.read(ctx, func(v *state.View) error {
			old, ok := v.Backend(b.ID)
			if !ok {
				return fleet.NotFound("storage backend")
			}
			next.CreatedAt, next.Rev = old.CreatedAt, old.Rev
			had, err := s.BackendSecrets(&old)
			if err != nil && (secrets.Key == "" || secrets.AdminKey == "") {
				return err
			}
			now := secrets
			if next.Kind == fleet.BackendCeph {
				now.Key, now.AdminKey = cmp.Or(now.Key, had.Key), cmp.Or(now.AdminKey, had.AdminKey)
			}
			if len(old.Sealed) > 0 && next.Kind == old.Kind && now == had && err == nil {
				next.Sealed = old.Sealed // anew sealed it would be another one, of which all hosts are told
				return nil
			}
			return s.sealBackend(&next, now)
		})
		if err != nil {
			return fleet.BackendView{}, err
		}
		return s.putBackend(ctx, state.PutBackend{Backend: next})
	})
}

func (s *Service) putBackend(ctx context.Context, cmd state.PutBackend) (fleet.BackendView, error) {
	made, err := propose[fleet.Backend](ctx, s, cmd)
	if err != nil {
		return fleet.BackendView{}, err
	}
	s.Log.Info("storage backend set", "backend", made.ID, "new", cmd.New, "dataCenter", made.DataCenter, "kind", made.Kind, "type", made.Type, "closed", made.Closed)
	return s.Backend(ctx, made.ID)
}

// sealBackend checks the secrets of a backend and seals them into it.
func (s *Service) sealBackend(b *fleet.Backend, secrets fleet.BackendSecrets) error {
	b.Sealed = nil
	if b.Kind != fleet.BackendCeph {
		if secrets != (fleet.BackendSecrets{}) {
			return fleet.Invalid("$.key", "is for backends of the kind cephfs only")
		}
		return nil
	}
	for _, key := range []struct {
		path  string
		value fleet.Secret
	}{{"$.key", secrets.Key}, {"$.adminKey", secrets.AdminKey}} {
		switch {
		case key.value == "":
			return fleet.Invalid(key.path, "is needed for a backend of the kind cephfs")
		case !cephKey.MatchString(key.value.Reveal()):
			return fleet.Invalid(key.path, "must be a key of Ceph: base64, at most 256 characters")
		}
	}
	plain, err := json.Marshal(sealedBackend{Key: secrets.Key.Reveal(), AdminKey: secrets.AdminKey.Reveal()})
	if err != nil {
		return errors.New("encode the keys of a backend") // the cause may quote them
	}
	b.Sealed, err = s.Sealer.Seal(backendPurpose(b.ID), plain)
	return err
}

// BackendSecrets opens the secrets of a backend, for hosts that mount it or look after it; none when it needs none.
func (s *Service) BackendSecrets(b *fleet.Backend) (fleet.BackendSecrets, error) {
	if len(b.Sealed) == 0 {
		return fleet.BackendSecrets{}, nil
	}
	plain, err := s.Sealer.Open(backendPurpose(b.ID), b.Sealed)
	if err != nil {
		return fleet.BackendSecrets{}, fmt.Errorf("open the keys of backend %s: %w", b.ID, err)
	}
	var c sealedBackend
	if err := json.Unmarshal(plain, &c); err != nil {
		return fleet.BackendSecrets{}, fmt.Errorf("read the keys of backend %s: they are not as they were written", b.ID)
	}
	return fleet.BackendSecrets{Key: fleet.Secret(c.Key), AdminKey: fleet.Secret(c.AdminKey)}, nil
}

// DeleteBackend deletes a backend of network volumes. Errors: not_found, rule (volumes are on it).
func (s *Service) DeleteBackend(ctx context.Context, id fleet.BackendID) error {
	return s.operate(ctx, "storage backend deleted", "backend", string(id), state.DeleteBackend{ID: id})
}

// ForceDeleteBackend deletes a backend whose storage is lost, with the volumes on it that are being deleted: what is left
// of them there nobody removes any more. Volumes that somebody has are never deleted with it. Errors: not_found, rule
// (such volumes are on it).
func (s *Service) ForceDeleteBackend(ctx context.Context, id fleet.BackendID) error {
	forgotten, err := propose[[]fleet.VolumeID](ctx, s, state.DeleteBackend{ID: id, Force: true})
	if err != nil {
		return err
	}
	s.Log.Warn("operator action", "what", "storage backend deleted, and the volumes forgotten that were being deleted on it",
		"backend", string(id), "volumes", len(forgotten))
	for _, volume := range forgotten {
		s.Log.Warn("network volume record removed; its data was not removed", "volume", volume, "backend", id)
	}
	return nil
}

// SetHostRoles replaces what a host may do beside running pods. Errors: not_found, invalid, not_allowed (it is gone).
func (s *Service) SetHostRoles(ctx context.Context, id fleet.HostID, roles []fleet.HostRole) (fleet.HostView, error) {
	roles = slices.Compact(slices.Sorted(slices.Values(roles)))
	for _, role := range roles {
		if role != fleet.RoleStorage && role != fleet.RoleS3 {
			return fleet.HostView{}, fleet.Invalid("$.roles", "must list roles of 'storage', 's3'")
		}
	}
	view, err := s.changeHost(ctx, id, state.SetHostRoles{Host: id, Roles: roles})
	if err == nil {
		s.Log.Info("host has new roles", "host", id, "roles", roles)
	}
	return view, err
}
