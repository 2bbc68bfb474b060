package fleet

import "time"

// LinkAct is what a link to a file of a network volume does.
type LinkAct string

// What links do.
const (
	LinkList   LinkAct = "list"
	LinkGet    LinkAct = "get"
	LinkPut    LinkAct = "put"
	LinkDelete LinkAct = "delete"
)

// VolumeLinkRequest asks for a link to a file of a network volume.
type VolumeLinkRequest struct {
	Act    LinkAct
	Key    string // path in the volume; of a folder with a slash at its end. To list: the folder, empty for the top
	Cursor string // to list: where the page before ended
	Life   time.Duration
}

// VolumeLink is one request of the S3 server that whoever has it may send.
type VolumeLink struct {
	Method    string
	URL       Secret
	ExpiresAt time.Time
}

// VolumeGrant is what the access key of links may do, until it ends.
type VolumeGrant struct {
	Account   AccountID
	Volume    VolumeID
	ReadOnly  bool
	ExpiresAt time.Time
	Secret    Secret
}
