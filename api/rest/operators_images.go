package rest

import (
	"context"
	"net/http"
	"slices"

	"github.com/danielgtaylor/huma/v2"

	"gantry/api/auth"
	"gantry/api/limit"
	"gantry/fleet"
)

// PrefetchRequest is the body that has hosts get an image.
type PrefetchRequest struct {
	Image         string   `json:"image" doc:"Image reference. It must be readable without a credential." minLength:"1" maxLength:"512" example:"docker.io/library/nginx:1.29"`
	DataCenterIDs []string `json:"dataCenterIds,omitempty" doc:"Only hosts of these data centers; omitted or empty: any." maxItems:"32" example:"[\"EU-RO-1\"]"`
	HostIDs       []string `json:"hostIds,omitempty" doc:"Only these hosts; omitted or empty: all." maxItems:"1000" example:"[\"h7d2k9s4f1g6j3\"]"`
}

// TransformSchema adds what field tags cannot say.
func (PrefetchRequest) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	least, longest := 1, 64
	for _, ids := range []string{"dataCenterIds", "hostIds"} {
		items := s.Properties[ids].Items
		items.MinLength, items.MaxLength = &least, &longest
	}
	describeImage(s.Properties["image"])
	return s
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
	Present      *bool    `json:"present" doc:"Whether the image that was asked for is there; null when none was."`
}

// TransformSchema says which members may be null.
func (HostImages) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return nullable(s, "present")
}

// HostImagesList is the answer to asking which images hosts have.
type HostImagesList struct {
	Page
	Hosts []HostImages `json:"hosts" doc:"The hosts, by id, but those that are gone."`
}

func (a *API) registerImages() {
	longest := 512
	one := "h7d2k9s4f1g6j3"
	there := true
	handle(a, route{
		method: http.MethodGet, path: "/admin/v1/images", id: "listImages", tag: "Operators", summary: "List the images of hosts",
		text: "Tells which images each host has, as the hosts said last; with image, which hosts have that one. Short references stand for full ones: " +
			"busybox is docker.io/library/busybox:latest. 404: there is no such host. 422: image is not an image reference.",
		scope: auth.Read(fleet.GroupAdmin), limit: limit.PerAccount, status: http.StatusOK, errors: []int{http.StatusNotFound},
		params: []*huma.Param{
			queryParam("image", "Only this image.", huma.Schema{Type: huma.TypeString, MaxLength: &longest}),
			listParam("hostId", "Only these hosts.", 100),
		},
		out: HostImagesList{Hosts: []HostImages{{
			ID: one, Name: "gpu-01", DataCenterID: "EU-RO-1", Connected: true, Images: []string{"docker.io/library/nginx:1.29"}, Present: &there,
		}}},
	}, a.listImages)
	handle(a, route{
		method: http.MethodPost, path: "/admin/v1/images/prefetch", id: "prefetchImage", tag: "Operators", summary: "Have hosts get an image",
		text: "Asks hosts to get an image before a pod needs it, in the background. Nothing is promised: GET /admin/v1/images tells where it is by now. " +
			"Images that need a credential cannot be got ahead. 404: there is no such host, or no host in such a data center.",
		scope: auth.Write(fleet.GroupAdmin), limit: limit.PerAccount, status: http.StatusAccepted, errors: []int{http.StatusNotFound},
		in:  PrefetchRequest{Image: "nginx:1.29", DataCenterIDs: []string{"EU-RO-1"}, HostIDs: []string{one}},
		out: Prefetch{Image: "docker.io/library/nginx:1.29", Hosts: []PrefetchHost{{ID: one, Name: "gpu-01", Present: true}}},
	}, a.prefetchImage)
}

func (a *API) listImages(ctx context.Context, c *call, _ *none) (*HostImagesList, error) {
	image := c.args.text("image")
	all, err := a.svc.Images(ctx, image)
	if err != nil {
		return nil, err
	}
	wanted := c.args["hostId"]
	for _, id := range wanted {
		if !slices.ContainsFunc(all, func(h fleet.HostImages) bool { return string(h.Host) == id }) {
			return nil, fleet.NotFound("host")
		}
	}
	out := HostImagesList{Hosts: []HostImages{}}
	for _, h := range all {
		if len(wanted) > 0 && !slices.Contains(wanted, string(h.Host)) {
			continue
		}
		record := HostImages{
			ID: string(h.Host), Name: h.Name, DataCenterID: string(h.DataCenter), Connected: h.Connected, Images: append([]string{}, h.Images...),
		}
		if image != "" {
			record.Present = &h.Present
		}
		out.Hosts = append(out.Hosts, record)
	}
	return &out, nil
}

func (a *API) prefetchImage(ctx context.Context, _ *call, in *PrefetchRequest) (*Prefetch, error) {
	q := fleet.PrefetchRequest{Image: in.Image}
	for _, id := range in.HostIDs {
		q.Hosts = append(q.Hosts, fleet.HostID(id))
	}
	for _, id := range in.DataCenterIDs {
		q.Centers = append(q.Centers, fleet.DataCenterID(id))
	}
	image, hosts, err := a.svc.PrefetchImage(ctx, q)
	if err != nil {
		return nil, err
	}
	out := Prefetch{Image: image, Hosts: []PrefetchHost{}}
	for _, h := range hosts {
		out.Hosts = append(out.Hosts, PrefetchHost{ID: string(h.Host), Name: h.Name, Present: h.Present})
	}
	return &out, nil
}
