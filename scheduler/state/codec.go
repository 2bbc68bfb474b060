package state

import (
	"sync"

	"gantry/fleet"
	"gantry/scheduler/entry"
)

// MaxCommand is the most bytes of one encoded command; Encode refuses more.
const MaxCommand = 4 << 20

// wire returns the codec of entries and records.
var wire = sync.OnceValues(func() (*codec, error) {
	return entry.NewCodec(MaxCommand, Command.number, commandTypes())
})

type codec = entry.Codec[Command]

// commandTypes lists an empty command of every type that the log may hold.
func commandTypes() []Command {
	return []Command{
		Bootstrap{},
		PutDataCenter{},
		PutCatalog{},
		PutAccount{},
		PutKey{},
		DeleteKey{},
		PutToken{},
		JoinHost{},
		ConnectHost{},
		SetHostState{},
		CreatePods{},
		ActPod{},
		ReportPods{},
		PurgePods{},
		UpdatePod{},
		Put[fleet.Template]{},
		Delete[fleet.Template]{},
		Put[fleet.Registry]{},
		Delete[fleet.Registry]{},
		SetSSHKeys{},
		UpdateKey{},
		TouchKeys{},
		UpdateAccount{},
		AddCredit{},
		PutGPUType{},
		DeleteGPUType{},
		PutCPUFlavor{},
		DeleteCPUFlavor{},
		PutStoragePrices{},
		DeleteDataCenter{},
		SetHostCloud{},
		CreateVolume{},
		UpdateVolume{},
		DeleteVolume{},
		SettleMeters{},
		ExhaustAccounts{},
		PurgeUsage{},
		PurgeOnce{},
		SetTemplateSource{},
		PutMember{},
		JoinMember{},
		RemoveMember{},
		RaiseLevel{},
		RestoreCluster{},
		SetHostEligibility{},
		SetHostLabels{},
		FenceHost{},
		RemoveHost{},
		PurgeHosts{},
		AlarmHost{},
		MovePod{},
		UpdateInventory{},
		Put[fleet.AccountSecret]{},
		Delete[fleet.AccountSecret]{},
		PutBackend{},
		DeleteBackend{},
		ReportVolumes{},
		SetHostRoles{},
		Put[fleet.S3Key]{},
		Delete[fleet.S3Key]{},
		PutNetworkSettings{},
		PutTLSFile{},
		BeginRotation{},
		AdvanceRotation{},
		SetLimits{},
		EvictPod{},
		EndPods{},
		TickClock{},
		CordonGPU{},
		OpenGPU{},
		SuspendAccount{},
		NoteBackup{},
		PutPlacement{},
		Put[fleet.Endpoint]{},
		Delete[fleet.Endpoint]{},
		ReadyWorkers{},
		FreezeWorker{},
		CreateCluster{},
		Put[fleet.Cluster]{},
		Delete[fleet.Cluster]{},
		NoteBalances{},
		RecordAudit{},
		PurgeAudit{},
		NoteWebhooks{},
		RestartCluster{},
		StopCluster{},
		PutModel{},
		DeleteModel{},
		HoldCredit{},
		SettleHolds{},
		PutObjectStore{},
		KeepFiles{},
		DropFiles{},
		JoinGateway{},
		DrainGateway{},
		RemoveGateway{},
		PutPerson{},
		DeletePerson{},
		BeginSession{},
		EndSessions{},
		ChooseAccount{},
	}
}

// Encode returns the data of a log entry that holds the commands; see entry.Codec. A command has MaxCommand bytes at most.
func Encode(cmds ...Command) ([]byte, error) {
	c, err := wire()
	if err != nil {
		return nil, err
	}
	return c.Encode(cmds...)
}

// Decode returns the commands of a log entry; see entry.Codec.
func Decode(data []byte) ([]Command, error) {
	c, err := wire()
	if err != nil {
		return nil, err
	}
	return c.Decode(data)
}
