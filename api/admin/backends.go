package admin

import (
	"gantry/api/v2"
)

// Backend is where network volumes of one data center and tier are.
type Backend struct {
	ID           string        `json:"id" doc:"Backend, as its operator named it." example:"ceph-nvme"`
	DataCenterID string        `json:"dataCenterId" doc:"Data center whose hosts mount it."`
	Type         string        `json:"type" doc:"Tier of its volumes." enum:"STANDARD,HIGH_PERFORMANCE"`
	Kind         string        `json:"kind" doc:"How it is reached." enum:"nfs,cephfs,local"`
	NFS          *NFSBackend   `json:"nfs" doc:"With kind nfs, else null."`
	Ceph         *CephBackend  `json:"cephfs" doc:"With kind cephfs, else null. Keys are not shown."`
	Local        *LocalBackend `json:"local" doc:"With kind local, else null."`
	StorageHost  v2.Text       `json:"storageHost" doc:"The one host that makes and deletes its volumes; null: any host of the data center with the role storage."`
	StoragePath  v2.Text       `json:"storagePath" doc:"The backend's root as a directory of storageHost, which limits the size of the volumes in it; null: storageHost mounts the backend as all do."`
	Quota        string        `json:"quota" doc:"enforced: nothing can be written above a volume's size; measured: what volumes hold is measured every minute or so, and one that holds 105 % of its size becomes read-only." enum:"enforced,measured"`
	Closed       bool          `json:"closed" doc:"Whether it gets no new volumes."`
	Volumes      int           `json:"volumes" doc:"Volumes on it, with those that are being deleted."`
	SizeGB       int64         `json:"sizeGb" doc:"Sum of their sizes in GB."`
	Host         v2.Text       `json:"host" doc:"Host that looks after its volumes now; null: none is connected."`
	Problem      v2.Text       `json:"problem" doc:"What is wrong, or null."`
	CreatedAt    v2.Time       `json:"createdAt" doc:"When it was made."`
}

// NFSBackend is a directory that an NFSv4 server exports.
type NFSBackend struct {
	Server  string `json:"server" doc:"Host name or address of the server." minLength:"1" maxLength:"253" pattern:"^[A-Za-z0-9.:-]+$" patternDescription:"a host name or an address" example:"nfs-1.example"`
	Export  string `json:"export" doc:"Absolute path of the export." minLength:"2" maxLength:"1024" pattern:"^/" patternDescription:"an absolute path" example:"/srv/volumes"`
	Options string `json:"options,omitempty" doc:"Mount options of nfs(5), comma-separated, in place of the defaults of the same name." maxLength:"512" example:"nconnect=4"`
}

// CephBackend is a directory of a Ceph file system.
type CephBackend struct {
	Monitors   []string `json:"monitors" doc:"Monitors as host:port." minItems:"1" maxItems:"16" example:"[\"10.0.0.11:6789\"]"`
	FileSystem string   `json:"fileSystem" doc:"Name of the file system." minLength:"1" maxLength:"128" example:"cephfs"`
	Path       string   `json:"path,omitempty" doc:"Absolute path in the file system below which the volumes are." maxLength:"1024" pattern:"^/" patternDescription:"an absolute path" default:"/" example:"/gantry"`
	User       string   `json:"user" doc:"Ceph user, without 'client.', with whose key every host mounts; it must not be allowed to set quotas (no 'p' in its mds capability)." minLength:"1" maxLength:"128" example:"gantry"`
	AdminUser  string   `json:"adminUser" doc:"Ceph user of hosts with the role storage, which set quotas ('rwp')." minLength:"1" maxLength:"128" example:"gantry-admin"`
}

// LocalBackend is a directory that every host of the data center has, for development.
type LocalBackend struct {
	Path string `json:"path" doc:"Absolute path." minLength:"2" maxLength:"1024" pattern:"^/" patternDescription:"an absolute path" example:"/srv/volumes"`
}

// BackendList is the answer to listing backends.
type BackendList struct {
	v2.Page
	Backends []Backend `json:"backends" doc:"Backends of network volumes, by id."`
}

// BackendSettings are what can be changed of a backend.
type BackendSettings struct {
	NFS         *NFSBackend   `json:"nfs,omitempty" doc:"With kind nfs. Its export cannot change while volumes are on it."`
	Ceph        *CephBackend  `json:"cephfs,omitempty" doc:"With kind cephfs. Its file system and path cannot change while volumes are on it."`
	Local       *LocalBackend `json:"local,omitempty" doc:"With kind local. Its path cannot change while volumes are on it."`
	StorageHost *string       `json:"storageHost,omitempty" doc:"The one host that makes and deletes its volumes, which must have the role storage; \"\": any host of the data center that has it. Kind local needs one." maxLength:"14" example:"h7d2k9s4f1g6j3"`
	StoragePath *string       `json:"storagePath,omitempty" doc:"The backend's root as a directory of storageHost; \"\": none." maxLength:"1024" example:"/srv/volumes"`
	Key         v2.Hidden     `json:"key,omitempty" doc:"With kind cephfs: key of user. It is stored encrypted and never shown." maxLength:"256" example:"placeholder"`
	AdminKey    v2.Hidden     `json:"adminKey,omitempty" doc:"With kind cephfs: key of adminUser. It is stored encrypted, sent to hosts with the role storage alone, and never shown." maxLength:"256" example:"placeholder"`
	Closed      *bool         `json:"closed,omitempty" doc:"Whether it gets no new volumes." example:"true"`
}

// CreateBackendRequest is the body that makes a backend.
type CreateBackendRequest struct {
	ID           string `json:"id" doc:"Name of the backend, for ever." minLength:"1" maxLength:"63" pattern:"^[a-z][a-z0-9-]*$" patternDescription:"lower-case letters, digits and '-', beginning with a letter" example:"ceph-nvme"`
	DataCenterID string `json:"dataCenterId" doc:"Data center whose hosts mount it." minLength:"1" maxLength:"63" example:"EU-RO-1"`
	Type         string `json:"type,omitempty" doc:"Tier of its volumes." enum:"STANDARD,HIGH_PERFORMANCE" default:"STANDARD" example:"STANDARD"`
	Kind         string `json:"kind" doc:"How it is reached." enum:"nfs,cephfs,local" example:"cephfs"`
	BackendSettings
}

// UpdateBackendRequest is the body that changes a backend.
type UpdateBackendRequest struct {
	BackendSettings
}
