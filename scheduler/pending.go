package scheduler

import (
	"context"
	"errors"
	"io"

	"gantry/fleet"
)

// The methods here wait for their writers; this file goes with the last of them.

var errPending = errors.New("pending")

func (s *Service) UpdatePod(ctx context.Context, who fleet.Principal, id fleet.PodID, change fleet.PodUpdate) (out fleet.PodView, err error) {
	return out, errPending
}

func (s *Service) ExecPod(ctx context.Context, who fleet.Principal, id fleet.PodID, req fleet.ExecRequest) (out fleet.ExecSession, err error) {
	return out, errPending
}

func (s *Service) ReadPodFiles(ctx context.Context, who fleet.Principal, id fleet.PodID, path string) (out io.ReadCloser, err error) {
	return out, errPending
}

func (s *Service) WritePodFiles(ctx context.Context, who fleet.Principal, id fleet.PodID, path string, tar io.Reader) (err error) {
	return errPending
}

func (s *Service) CreateTemplate(ctx context.Context, who fleet.Principal, t fleet.Template, once *fleet.Once) (made fleet.Template, replayed bool, err error) {
	return made, false, errPending
}

func (s *Service) Templates(ctx context.Context, who fleet.Principal) (out []fleet.Template, err error) {
	return out, errPending
}

func (s *Service) PublicTemplates(ctx context.Context, source fleet.TemplateSource) (out []fleet.Template, err error) {
	return out, errPending
}

func (s *Service) Template(ctx context.Context, who fleet.Principal, id fleet.TemplateID) (out fleet.Template, err error) {
	return out, errPending
}

func (s *Service) UpdateTemplate(ctx context.Context, who fleet.Principal, id fleet.TemplateID, change fleet.TemplateUpdate) (out fleet.Template, err error) {
	return out, errPending
}

func (s *Service) DeleteTemplate(ctx context.Context, who fleet.Principal, id fleet.TemplateID) (err error) {
	return errPending
}

func (s *Service) CreateRegistry(ctx context.Context, who fleet.Principal, name string, cred fleet.Credential, once *fleet.Once) (made fleet.Registry, replayed bool, err error) {
	return made, false, errPending
}

func (s *Service) Registries(ctx context.Context, who fleet.Principal) (out []fleet.Registry, err error) {
	return out, errPending
}

func (s *Service) Registry(ctx context.Context, who fleet.Principal, id fleet.RegistryID) (out fleet.Registry, err error) {
	return out, errPending
}

func (s *Service) DeleteRegistry(ctx context.Context, who fleet.Principal, id fleet.RegistryID) (err error) {
	return errPending
}

func (s *Service) Account(ctx context.Context, who fleet.Principal) (out fleet.AccountView, err error) {
	return out, errPending
}

func (s *Service) SSHKeys(ctx context.Context, who fleet.Principal) (out []string, err error) {
	return out, errPending
}

func (s *Service) SetSSHKeys(ctx context.Context, who fleet.Principal, keys []string) (err error) {
	return errPending
}

func (s *Service) Billing(ctx context.Context, who fleet.Principal, q fleet.BillingQuery) (out fleet.BillingView, err error) {
	return out, errPending
}

func (s *Service) Key(ctx context.Context, who fleet.Principal, id fleet.KeyID) (out fleet.Key, err error) {
	return out, errPending
}

func (s *Service) UpdateKey(ctx context.Context, who fleet.Principal, id fleet.KeyID, change fleet.KeyUpdate) (out fleet.Key, err error) {
	return out, errPending
}

func (s *Service) AccountByID(ctx context.Context, id fleet.AccountID) (out fleet.AccountView, err error) {
	return out, errPending
}

func (s *Service) UpdateAccount(ctx context.Context, id fleet.AccountID, change fleet.AccountUpdate) (out fleet.AccountView, err error) {
	return out, errPending
}

func (s *Service) AddCredit(ctx context.Context, id fleet.AccountID, amount fleet.Money, once *fleet.Once) (out fleet.Money, err error) {
	return out, errPending
}

func (s *Service) SetHostCloud(ctx context.Context, id fleet.HostID, cloud fleet.Cloud) (out fleet.HostView, err error) {
	return out, errPending
}

func (s *Service) PutDataCenter(ctx context.Context, dc fleet.DataCenter) (err error) {
	return errPending
}

func (s *Service) DeleteDataCenter(ctx context.Context, id fleet.DataCenterID) (err error) {
	return errPending
}

func (s *Service) PutGPUType(ctx context.Context, t fleet.GPUType) (err error) { return errPending }

func (s *Service) DeleteGPUType(ctx context.Context, id string) (err error) { return errPending }

func (s *Service) PutCPUFlavor(ctx context.Context, f fleet.CPUFlavor) (err error) { return errPending }

func (s *Service) DeleteCPUFlavor(ctx context.Context, id string) (err error) { return errPending }

func (s *Service) StoragePrices(ctx context.Context) (out fleet.StoragePrices, err error) {
	return out, errPending
}

func (s *Service) PutStoragePrices(ctx context.Context, p fleet.StoragePrices) (err error) {
	return errPending
}

func (s *Service) SetTemplateSource(ctx context.Context, id fleet.TemplateID, source fleet.TemplateSource) (out fleet.Template, err error) {
	return out, errPending
}
