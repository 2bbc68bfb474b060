package state

// The type numbers on the log. A number is never used again.
const (
	numBootstrap uint64 = iota + 1
	numPutDataCenter
	numPutCatalog
	numPutAccount
	numPutKey
	numDeleteKey
	numPutToken
	numJoinHost
	numConnectHost
	numSetHostState
	numCreatePod
	numActPod
	numReportPods
	numPurgePods
	numUpdatePod
	numPutTemplate
	numDeleteTemplate
	numPutRegistry
	numDeleteRegistry
	numSetSSHKeys
	numUpdateKey
	numTouchKeys
	numUpdateAccount
	numAddCredit
	numPutGPUType
	numDeleteGPUType
	numPutCPUFlavor
	numDeleteCPUFlavor
	numPutStoragePrices
	numDeleteDataCenter
	numSetHostCloud
	numCreateVolume
	numUpdateVolume
	numDeleteVolume
	numSettleMeters
	numExhaustAccounts
	numPurgeUsage
	numPurgeOnce
	numSetTemplateSource
	numPutMember
	numJoinMember
	numRemoveMember
	numRaiseLevel
	numRestoreCluster
	numSetHostEligibility
	numSetHostLabels
	numFenceHost
	numRemoveHost
	numPurgeHosts
	numAlarmHost
	numMovePod
	numUpdateInventory
	numPutSecret
	numDeleteSecret
	numPutBackend
	numDeleteBackend
	numReportVolumes
	numSetHostRoles
	numPutS3Key
	numDeleteS3Key
	numPutNetworkSettings
	numPutTLSFile
	numBeginRotation
	numAdvanceRotation
	numSetLimits
	numEvictPod
	numTickClock
	numCordonGPU
	numOpenGPU
	numSuspendAccount
	numNoteBackup
	numPutPlacement
	numPutEndpoint
	numDeleteEndpoint
	numReadyWorkers
	numFreezeWorker
)

func (Bootstrap) number() uint64     { return numBootstrap }
func (PutDataCenter) number() uint64 { return numPutDataCenter }
func (PutCatalog) number() uint64    { return numPutCatalog }
func (PutAccount) number() uint64    { return numPutAccount }
func (PutKey) number() uint64        { return numPutKey }
func (DeleteKey) number() uint64     { return numDeleteKey }
func (PutToken) number() uint64      { return numPutToken }
func (JoinHost) number() uint64      { return numJoinHost }
func (ConnectHost) number() uint64   { return numConnectHost }
func (SetHostState) number() uint64  { return numSetHostState }
func (CreatePods) number() uint64    { return numCreatePod }
func (ActPod) number() uint64        { return numActPod }
func (ReportPods) number() uint64    { return numReportPods }
func (PurgePods) number() uint64     { return numPurgePods }

func (UpdatePod) number() uint64         { return numUpdatePod }
func (SetSSHKeys) number() uint64        { return numSetSSHKeys }
func (UpdateKey) number() uint64         { return numUpdateKey }
func (TouchKeys) number() uint64         { return numTouchKeys }
func (UpdateAccount) number() uint64     { return numUpdateAccount }
func (AddCredit) number() uint64         { return numAddCredit }
func (PutGPUType) number() uint64        { return numPutGPUType }
func (DeleteGPUType) number() uint64     { return numDeleteGPUType }
func (PutCPUFlavor) number() uint64      { return numPutCPUFlavor }
func (DeleteCPUFlavor) number() uint64   { return numDeleteCPUFlavor }
func (PutStoragePrices) number() uint64  { return numPutStoragePrices }
func (DeleteDataCenter) number() uint64  { return numDeleteDataCenter }
func (SetHostCloud) number() uint64      { return numSetHostCloud }
func (CreateVolume) number() uint64      { return numCreateVolume }
func (UpdateVolume) number() uint64      { return numUpdateVolume }
func (DeleteVolume) number() uint64      { return numDeleteVolume }
func (SettleMeters) number() uint64      { return numSettleMeters }
func (ExhaustAccounts) number() uint64   { return numExhaustAccounts }
func (PurgeUsage) number() uint64        { return numPurgeUsage }
func (PurgeOnce) number() uint64         { return numPurgeOnce }
func (SetTemplateSource) number() uint64 { return numSetTemplateSource }

func (PutMember) number() uint64          { return numPutMember }
func (JoinMember) number() uint64         { return numJoinMember }
func (RemoveMember) number() uint64       { return numRemoveMember }
func (RaiseLevel) number() uint64         { return numRaiseLevel }
func (RestoreCluster) number() uint64     { return numRestoreCluster }
func (SetHostEligibility) number() uint64 { return numSetHostEligibility }
func (SetHostLabels) number() uint64      { return numSetHostLabels }
func (FenceHost) number() uint64          { return numFenceHost }
func (RemoveHost) number() uint64         { return numRemoveHost }
func (PurgeHosts) number() uint64         { return numPurgeHosts }
func (AlarmHost) number() uint64          { return numAlarmHost }
func (MovePod) number() uint64            { return numMovePod }

func (UpdateInventory) number() uint64 { return numUpdateInventory }

func (PutBackend) number() uint64    { return numPutBackend }
func (DeleteBackend) number() uint64 { return numDeleteBackend }
func (ReportVolumes) number() uint64 { return numReportVolumes }
func (SetHostRoles) number() uint64  { return numSetHostRoles }

func (PutNetworkSettings) number() uint64 { return numPutNetworkSettings }
func (PutTLSFile) number() uint64         { return numPutTLSFile }
func (BeginRotation) number() uint64      { return numBeginRotation }
func (AdvanceRotation) number() uint64    { return numAdvanceRotation }
func (SetLimits) number() uint64          { return numSetLimits }
func (EvictPod) number() uint64           { return numEvictPod }
func (TickClock) number() uint64          { return numTickClock }
func (CordonGPU) number() uint64          { return numCordonGPU }
func (OpenGPU) number() uint64            { return numOpenGPU }
func (SuspendAccount) number() uint64     { return numSuspendAccount }
func (NoteBackup) number() uint64         { return numNoteBackup }
func (PutPlacement) number() uint64       { return numPutPlacement }
func (ReadyWorkers) number() uint64       { return numReadyWorkers }
func (FreezeWorker) number() uint64       { return numFreezeWorker }
