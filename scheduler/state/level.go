package state

import (
	"fmt"

	"gantry/fleet"
)

// LevelOf returns the feature level from which on a command may be on the log; 0 for one that was given
// none, which no log may hold. Level 1 is what the first release understands; a command that comes after it gets the next level.
func LevelOf(cmd Command) uint64 {
	switch cmd.(type) {
	case Bootstrap, PutDataCenter, PutCatalog, PutAccount, PutKey, DeleteKey, PutToken, JoinHost, ConnectHost, SetHostState,
		CreatePods, ActPod, ReportPods, PurgePods, UpdatePod,
		Put[fleet.Template], Delete[fleet.Template], Put[fleet.Registry], Delete[fleet.Registry],
		SetSSHKeys, UpdateKey, TouchKeys, UpdateAccount, AddCredit, PutGPUType, DeleteGPUType, PutCPUFlavor,
		DeleteCPUFlavor, PutStoragePrices, DeleteDataCenter, SetHostCloud, CreateVolume, UpdateVolume, DeleteVolume,
		SettleMeters, ExhaustAccounts, PurgeUsage, PurgeOnce, SetTemplateSource, PutMember, JoinMember, RemoveMember,
		RaiseLevel, RestoreCluster, SetHostEligibility, SetHostLabels, FenceHost, RemoveHost, PurgeHosts, AlarmHost, MovePod,
		UpdateInventory, Put[fleet.AccountSecret], Delete[fleet.AccountSecret], PutBackend, DeleteBackend, ReportVolumes, SetHostRoles,
		Put[fleet.S3Key], Delete[fleet.S3Key],
		PutNetworkSettings, PutTLSFile, BeginRotation, AdvanceRotation, SetLimits, EvictPod, TickClock, CordonGPU, OpenGPU,
		SuspendAccount, NoteBackup, PutPlacement, Put[fleet.Endpoint], Delete[fleet.Endpoint], ReadyWorkers, FreezeWorker, EndPods,
		CreateCluster, Put[fleet.Cluster], Delete[fleet.Cluster], NoteBalances, RecordAudit, PurgeAudit, NoteWebhooks,
		RestartCluster, StopCluster,
		PutModel, DeleteModel, HoldCredit, SettleHolds, PutObjectStore, KeepFiles, DropFiles,
		JoinGateway, DrainGateway, RemoveGateway,
		PutPerson, DeletePerson, BeginSession, EndSessions, ChooseAccount:
		return 1
	}
	return 0
}

// newerError says that the cluster has a feature level that this program does not understand.
type newerError struct{ cluster, program uint64 }

func (e *newerError) Error() string {
	return fmt.Sprintf("this program is older than the cluster: the cluster is at feature level %d, "+
		"the program understands up to %d; run the version that the other members run", e.cluster, e.program)
}

// understood returns nil, or a *newerError.
func understood(cluster, program uint64) error {
	if cluster > program {
		return &newerError{cluster, program}
	}
	return nil
}

// understand stops the replica when its program does not understand a level.
func (t *txn) understand(level uint64) {
	if err := understood(level, t.base.program); err != nil {
		t.Halt(err)
	}
}

// levelInForce returns the level of the cluster.
func (tb *tables) levelInForce() uint64 {
	if c := tb.cluster.Rows[onlyKey]; c != nil {
		return c.Level
	}
	return 0
}

// lineage returns that of the cluster.
func (tb *tables) lineage() uint64 {
	if c := tb.cluster.Rows[onlyKey]; c != nil {
		return c.Lineage
	}
	return 0
}

func (c RaiseLevel) apply(t *txn) (any, error) {
	old, err := t.cluster()
	if err != nil {
		return nil, err
	}
	if c.Level <= old.Level {
		return nil, nil // it never falls
	}
	t.understand(c.Level)
	old.Level = c.Level
	t.base.cluster.Put(t.Txn, onlyKey, &old)
	t.Note(KindMember, "")
	return nil, nil
}
