package v2

// VolumeV1 is a network volume as version 1 of the API has it.
type VolumeV1 struct {
	ID           string `json:"id" doc:"Network volume identifier." example:"v8d2k9s4f1g6j3"`
	Name         string `json:"name" doc:"Name of the volume."`
	Size         int    `json:"size" doc:"GB of 10^9 bytes."`
	DataCenterID string `json:"dataCenterId" doc:"Data center of the volume."`
}

// VolumeListV1 is the answer to listing network volumes.
type VolumeListV1 []VolumeV1

// CreateVolumeV1Request is the body that makes a network volume.
type CreateVolumeV1Request struct {
	Name         string `json:"name" doc:"Name of the volume; need not be unique. No control characters." minLength:"1" maxLength:"191" pattern:"^[^\\x00-\\x1f\\x7f-\\x9f]*$" patternDescription:"printable text" example:"datasets"`
	Size         int    `json:"size" doc:"GB of 10^9 bytes. It can grow later, and never shrink." minimum:"10" maximum:"4096" example:"100"`
	DataCenterID string `json:"dataCenterId" doc:"Data center of the volume. Its tier is the one that the data center offers, STANDARD before HIGH_PERFORMANCE." minLength:"1" maxLength:"63" example:"EU-RO-1"`
}
