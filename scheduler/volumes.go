package scheduler

import (
	"context"

	"gantry/fleet"
)

var errNotBuilt = fleet.Unavailable("not built", nil)

func (s *Service) CreateVolume(ctx context.Context, who fleet.Principal, req fleet.VolumeRequest) (made fleet.VolumeView, replayed bool, err error) {
	return made, false, errNotBuilt
}
func (s *Service) Volumes(ctx context.Context, who fleet.Principal) ([]fleet.VolumeView, error) {
	return nil, errNotBuilt
}
func (s *Service) Volume(ctx context.Context, who fleet.Principal, id fleet.VolumeID) (v fleet.VolumeView, err error) {
	return v, errNotBuilt
}
func (s *Service) UpdateVolume(ctx context.Context, who fleet.Principal, id fleet.VolumeID, change fleet.VolumeUpdate) (v fleet.VolumeView, err error) {
	return v, errNotBuilt
}
func (s *Service) DeleteVolume(ctx context.Context, who fleet.Principal, id fleet.VolumeID) error {
	return errNotBuilt
}
func (s *Service) CreateS3Key(ctx context.Context, who fleet.Principal, req fleet.S3KeyRequest) (k fleet.S3Key, sec fleet.Secret, err error) {
	return k, sec, errNotBuilt
}
func (s *Service) S3Keys(ctx context.Context, who fleet.Principal) ([]fleet.S3Key, error) {
	return nil, errNotBuilt
}
func (s *Service) DeleteS3Key(ctx context.Context, who fleet.Principal, id string) error {
	return errNotBuilt
}
func (s *Service) SetHostRoles(ctx context.Context, id fleet.HostID, roles []fleet.HostRole) (v fleet.HostView, err error) {
	return v, errNotBuilt
}
func (s *Service) Backends(ctx context.Context) ([]fleet.BackendView, error) { return nil, errNotBuilt }
func (s *Service) Backend(ctx context.Context, id fleet.BackendID) (v fleet.BackendView, err error) {
	return v, errNotBuilt
}
func (s *Service) CreateBackend(ctx context.Context, b fleet.Backend, secrets fleet.BackendSecrets) (v fleet.BackendView, err error) {
	return v, errNotBuilt
}
func (s *Service) UpdateBackend(ctx context.Context, b fleet.Backend, secrets fleet.BackendSecrets) (v fleet.BackendView, err error) {
	return v, errNotBuilt
}
func (s *Service) DeleteBackend(ctx context.Context, id fleet.BackendID) error { return errNotBuilt }
