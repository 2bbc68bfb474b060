package rest

import (
	"context"
	"net/http"
	"slices"

	"github.com/danielgtaylor/huma/v2"

	"gantry/api/admin"
	"gantry/api/auth"
	"gantry/api/limit"
	"gantry/fleet"
)

// ImageService tells of the images of hosts.
type ImageService interface {
	// Images tells which images each host has; with a reference, which hosts have that one.
	Images(ctx context.Context, image string) ([]fleet.HostImages, error)
	// PrefetchImage asks connected hosts to get an image and returns its full name and those that were asked.
	PrefetchImage(ctx context.Context, q fleet.PrefetchRequest) (image string, hosts []fleet.HostImages, err error)
}

func (a *API) registerImages() {
	longest := 512
	one := "h7d2k9s4f1g6j3"
	there := true
	on(a, route{
		method: http.MethodGet, path: "/admin/v1/images", id: "listImages", tag: "Operators", summary: "List the images of hosts",
		text: "Tells which images each host has, as the hosts said last; with image, which hosts have that one. Short references stand for full ones: " +
			"busybox is docker.io/library/busybox:latest. 404: there is no such host. 422: image is not an image reference.",
		scope: auth.Read(fleet.GroupAdmin), limit: limit.PerAccount, status: http.StatusOK, errors: []int{http.StatusNotFound},
		params: []*huma.Param{
			queryParam("image", "Only this image.", huma.Schema{Type: huma.TypeString, MaxLength: &longest}),
			listParam("hostId", "Only these hosts.", 100),
		},
		out: admin.HostImagesList{Hosts: []admin.HostImages{{
			ID: one, Name: "gpu-01", DataCenterID: "EU-RO-1", Connected: true, Images: []string{"docker.io/library/nginx:1.29"},
			Models: []string{"https://huggingface.co/acme/model:main"}, Present: &there,
		}}},
	}, listImages)
	on(a, route{
		method: http.MethodPost, path: "/admin/v1/images/prefetch", id: "prefetchImage", tag: "Operators", summary: "Have hosts get an image",
		text: "Asks hosts to get an image before a pod needs it, in the background. Nothing is promised: GET /admin/v1/images tells where it is by now. " +
			"Images that need a credential cannot be got ahead. 404: there is no such host, or no host in such a data center.",
		scope: auth.Write(fleet.GroupAdmin), limit: limit.PerAccount, status: http.StatusAccepted, errors: []int{http.StatusNotFound},
		in:  admin.PrefetchRequest{Image: "nginx:1.29", DataCenterIDs: []string{"EU-RO-1"}, HostIDs: []string{one}},
		out: admin.Prefetch{Image: "docker.io/library/nginx:1.29", Hosts: []admin.PrefetchHost{{ID: one, Name: "gpu-01", Present: true}}},
	}, prefetchImage)
}

func listImages(ctx context.Context, svc ImageService, c *call, _ *none) (*admin.HostImagesList, error) {
	image := c.args.text("image")
	all, err := svc.Images(ctx, image)
	if err != nil {
		return nil, err
	}
	wanted := c.args["hostId"]
	for _, id := range wanted {
		if !slices.ContainsFunc(all, func(h fleet.HostImages) bool { return string(h.Host) == id }) {
			return nil, fleet.NotFound("host")
		}
	}
	out := admin.HostImagesList{Hosts: []admin.HostImages{}}
	for _, h := range all {
		if len(wanted) > 0 && !slices.Contains(wanted, string(h.Host)) {
			continue
		}
		record := admin.HostImages{
			ID: string(h.Host), Name: h.Name, DataCenterID: string(h.DataCenter), Connected: h.Connected, Images: append([]string{}, h.Images...),
			Models: append([]string{}, h.Models...),
		}
		if image != "" {
			record.Present = &h.Present
		}
		out.Hosts = append(out.Hosts, record)
	}
	return &out, nil
}

func prefetchImage(ctx context.Context, svc ImageService, _ *call, in *admin.PrefetchRequest) (*admin.Prefetch, error) {
	q := fleet.PrefetchRequest{Image: in.Image}
	for _, id := range in.HostIDs {
		q.Hosts = append(q.Hosts, fleet.HostID(id))
	}
	for _, id := range in.DataCenterIDs {
		q.Centers = append(q.Centers, fleet.DataCenterID(id))
	}
	image, hosts, err := svc.PrefetchImage(ctx, q)
	if err != nil {
		return nil, err
	}
	out := admin.Prefetch{Image: image, Hosts: []admin.PrefetchHost{}}
	for _, h := range hosts {
		out.Hosts = append(out.Hosts, admin.PrefetchHost{ID: string(h.Host), Name: h.Name, Present: h.Present})
	}
	return &out, nil
}
