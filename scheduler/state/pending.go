package state

import "errors"

var errPending = errors.New("pending")

func (c UpdatePod) apply(*txn) (any, error)         { return nil, errPending }
func (c PutTemplate) apply(*txn) (any, error)       { return nil, errPending }
func (c DeleteTemplate) apply(*txn) (any, error)    { return nil, errPending }
func (c PutRegistry) apply(*txn) (any, error)       { return nil, errPending }
func (c DeleteRegistry) apply(*txn) (any, error)    { return nil, errPending }
func (c SetSSHKeys) apply(*txn) (any, error)        { return nil, errPending }
func (c UpdateKey) apply(*txn) (any, error)         { return nil, errPending }
func (c TouchKeys) apply(*txn) (any, error)         { return nil, errPending }
func (c UpdateAccount) apply(*txn) (any, error)     { return nil, errPending }
func (c PutGPUType) apply(*txn) (any, error)        { return nil, errPending }
func (c DeleteGPUType) apply(*txn) (any, error)     { return nil, errPending }
func (c PutCPUFlavor) apply(*txn) (any, error)      { return nil, errPending }
func (c DeleteCPUFlavor) apply(*txn) (any, error)   { return nil, errPending }
func (c PutStoragePrices) apply(*txn) (any, error)  { return nil, errPending }
func (c DeleteDataCenter) apply(*txn) (any, error)  { return nil, errPending }
func (c SetHostCloud) apply(*txn) (any, error)      { return nil, errPending }
func (c CreateVolume) apply(*txn) (any, error)      { return nil, errPending }
func (c UpdateVolume) apply(*txn) (any, error)      { return nil, errPending }
func (c DeleteVolume) apply(*txn) (any, error)      { return nil, errPending }
func (c PurgeOnce) apply(*txn) (any, error)         { return nil, errPending }
func (c SetTemplateSource) apply(*txn) (any, error) { return nil, errPending }
