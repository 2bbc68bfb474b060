package v2

// S3Key is a key pair of the S3 interface without its secret.
type S3Key struct {
	ID        string `json:"id" doc:"Access key." example:"user_000000000000000000000000000"`
	Name      string `json:"name" doc:"Name of the key."`
	ReadOnly  bool   `json:"readOnly" doc:"Whether it only reads."`
	CreatedAt Time   `json:"createdAt" doc:"When it was made."`
	ExpiresAt *Time  `json:"expiresAt" doc:"When it ends to work; null: never."`
}

// NewS3Key is a key pair with its secret, which is shown this once.
type NewS3Key struct {
	Key    S3Key  `json:"key" doc:"The key's record; its id is the access key."`
	Secret Hidden `json:"secretAccessKey" doc:"The secret key. It cannot be shown again." example:"rps_0000000000000000000000000000000000000000000"`
}

// S3KeyList is the answer to listing key pairs.
type S3KeyList struct {
	S3Keys []S3Key `json:"s3Keys" doc:"The account's S3 keys, oldest first."`
}

// CreateS3KeyRequest is the body that makes a key pair.
type CreateS3KeyRequest struct {
	Name      string `json:"name" doc:"Name of the key. No control characters." minLength:"1" maxLength:"191" pattern:"^[^\\x00-\\x1f\\x7f-\\x9f]*$" patternDescription:"printable text" example:"laptop"`
	ReadOnly  bool   `json:"readOnly,omitempty" doc:"Whether it only reads." default:"false"`
	ExpiresAt *Time  `json:"expiresAt,omitempty" doc:"When it ends to work, in the future. Omitted: never."`
}

// NetworkVolume is storage that outlives pods.
type NetworkVolume struct {
	ID           string `json:"id" doc:"Network volume identifier; also its bucket of the S3 interface." example:"v8d2k9s4f1g6j3"`
	Name         string `json:"name" doc:"Name of the volume."`
	Size         int    `json:"size" doc:"GB of 10^9 bytes that it may hold and that are paid for."`
	DataCenter   string `json:"dataCenter" doc:"Data center of the volume."`
	Type         string `json:"type" doc:"Tier." enum:"STANDARD,HIGH_PERFORMANCE"`
	Provisioned  int    `json:"provisioned" doc:"GB that its storage gives it at present; less than size while it is being made or grown."`
	Status       string `json:"status" doc:"CREATING: its storage is being made, pods that mount it wait; READY; UPDATING: it is larger now, and its storage has not followed yet; READ_ONLY: it holds far more than its size, and cannot be written to until it is grown or emptied." enum:"CREATING,READY,UPDATING,READ_ONLY"`
	StatusReason Text   `json:"statusReason" doc:"Why it is not ready, or not as large as it is to be; or null."`
	Used         *int64 `json:"used" doc:"Bytes in use when that was last measured; null: not known."`
	CreatedAt    Time   `json:"createdAt" doc:"When it was made."`
}

// NetworkVolumeList is the answer to listing network volumes.
type NetworkVolumeList struct {
	Page
	NetworkVolumes []NetworkVolume `json:"networkVolumes" doc:"The account's network volumes, oldest first."`
}

// CreateNetworkVolumeRequest is the body that makes a network volume.
type CreateNetworkVolumeRequest struct {
	Name       string `json:"name" doc:"Name of the volume; need not be unique. No control characters." minLength:"1" maxLength:"191" pattern:"^[^\\x00-\\x1f\\x7f-\\x9f]*$" patternDescription:"printable text" example:"datasets"`
	Size       int    `json:"size" doc:"GB of 10^9 bytes. It can grow later, and never shrink." minimum:"10" maximum:"4096" example:"100"`
	DataCenter string `json:"dataCenter" doc:"Data center of the volume, one that has networkVolumeTypes; pods that mount it run there." minLength:"1" maxLength:"63" example:"EU-RO-1"`
	Type       string `json:"type,omitempty" doc:"Tier. Default: the one that the data center offers, STANDARD before HIGH_PERFORMANCE." enum:"STANDARD,HIGH_PERFORMANCE" example:"STANDARD"`
}

// UpdateNetworkVolumeRequest is the body that changes a network volume.
type UpdateNetworkVolumeRequest struct {
	Name *string `json:"name,omitempty" doc:"Name of the volume." minLength:"1" maxLength:"191" pattern:"^[^\\x00-\\x1f\\x7f-\\x9f]*$" patternDescription:"printable text" example:"datasets"`
	Size *int    `json:"size,omitempty" doc:"GB of 10^9 bytes, not less than before. Pods that run have the room without a restart." minimum:"10" maximum:"4096" example:"200"`
}

// VolumeLink is a presigned request of S3.
type VolumeLink struct {
	Method    string `json:"method" doc:"GET, PUT or DELETE." example:"GET"`
	URL       Hidden `json:"url" doc:"Where to send it, for whoever has it: without headers of S3, PUT with the file as its body."`
	ExpiresAt Time   `json:"expiresAt" doc:"Until when."`
}
