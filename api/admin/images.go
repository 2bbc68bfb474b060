package admin

import (
	"gantry/api/v2"
)

// PrefetchRequest is the body that has hosts get an image.
type PrefetchRequest struct {
	Image         string   `json:"image" doc:"Image reference. It must be readable without a credential." minLength:"1" maxLength:"512" example:"docker.io/library/nginx:1.29"`
	DataCenterIDs []string `json:"dataCenterIds,omitempty" doc:"Only hosts of these data centers; omitted or empty: any." maxItems:"32" minLength:"1" maxLength:"64" example:"[\"EU-RO-1\"]"`
	HostIDs       []string `json:"hostIds,omitempty" doc:"Only these hosts; omitted or empty: all." maxItems:"1000" minLength:"1" maxLength:"64" example:"[\"h7d2k9s4f1g6j3\"]"`
}

// Prefetch is the answer to having hosts get an image.
type Prefetch struct {
	Image string         `json:"image" doc:"Full reference of the image." example:"docker.io/library/nginx:1.29"`
	Hosts []PrefetchHost `json:"hosts" doc:"Hosts that were asked, by id. One that is away is not among them."`
}

// PrefetchHost is a host that was asked to get an image.
type PrefetchHost struct {
	ID      string `json:"id" doc:"Host identifier." example:"h7d2k9s4f1g6j3"`
	Name    string `json:"name" doc:"Host name."`
	Present bool   `json:"present" doc:"The image is there already, under that reference."`
}

// HostImages is what images a host has.
type HostImages struct {
	ID           string   `json:"id" doc:"Host identifier." example:"h7d2k9s4f1g6j3"`
	Name         string   `json:"name" doc:"Host name."`
	DataCenterID string   `json:"dataCenterId" doc:"Where it stands."`
	Connected    bool     `json:"connected" doc:"It has a session; otherwise this is what it said last."`
	Images       []string `json:"images" doc:"Full references, at most 200: those that were used last. Where image was asked for, only that one."`
	Models       []string `json:"models" doc:"References of models of a hub, at most 200; none where image was asked for."`
	Present      *bool    `json:"present" doc:"Whether the image that was asked for is there; null when none was."`
}

// HostImagesList is the answer to asking which images hosts have.
type HostImagesList struct {
	v2.Page
	Hosts []HostImages `json:"hosts" doc:"The hosts, by id, but those that are gone."`
}
