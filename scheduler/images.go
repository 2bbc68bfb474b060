package scheduler

import (
	"context"
	"fmt"
	"slices"

	"gantry/fleet"
)

// PrefetchImage has connected hosts get an image before a pod asks for it: those that are named, else those of the
// data centers that are named, else all. Nothing is promised and nothing is written down; what became of it shows in
// Images. It returns the hosts that were asked, or have it already. Images that need a credential cannot be got so.
// Errors: not_found (a host, a data center), invalid (the reference).
func (s *Service) PrefetchImage(ctx context.Context, q fleet.PrefetchRequest) (image string, hosts []fleet.HostImages, err error) {
	full, ok := fleet.ImageName(q.Image)
	if !ok {
		return "", nil, fleet.Invalid("$.image", "must be an image reference")
	}
	all, err := s.imagesOf(ctx, full)
	if err != nil {
		return "", nil, err
	}
	for i, id := range q.Hosts {
		if !slices.ContainsFunc(all, func(h fleet.HostImages) bool { return h.Host == id }) {
			return "", nil, missing(fmt.Sprintf("$.hostIds[%d]", i), "no such host")
		}
	}
	for i, id := range q.Centers {
		if !slices.ContainsFunc(all, func(h fleet.HostImages) bool { return h.DataCenter == id }) {
			return "", nil, missing(fmt.Sprintf("$.dataCenterIds[%d]", i), "no host is in such a data center")
		}
	}
	hosts = []fleet.HostImages{}
	for _, h := range all {
		named := len(q.Hosts) == 0 || slices.Contains(q.Hosts, h.Host)
		there := len(q.Centers) == 0 || slices.Contains(q.Centers, h.DataCenter)
		// Also where it is already: that it was asked for keeps it there for a while.
		if named && there && s.Dispatch.Prefetch(h.Host, full) {
			hosts = append(hosts, h)
		}
	}
	s.Log.Info("hosts were asked to get an image", "image", full, "hosts", len(hosts))
	return full, hosts, nil
}

// Images tells which images each host has, those aside that are gone; with a reference, which hosts have that one.
// Errors: invalid (the reference).
func (s *Service) Images(ctx context.Context, image string) ([]fleet.HostImages, error) {
	if image == "" {
		return s.imagesOf(ctx, "")
	}
	full, ok := fleet.ImageName(image)
	if !ok {
		return nil, fleet.Invalid("query.image", "must be an image reference")
	}
	return s.imagesOf(ctx, full)
}

// imagesOf returns the hosts with their images, or with whether they have the one of that full name.
func (s *Service) imagesOf(ctx context.Context, full string) ([]fleet.HostImages, error) {
	views, err := s.Hosts(ctx)
	if err != nil {
		return nil, err
	}
	out := []fleet.HostImages{}
	for i := range views {
		h := &views[i].Host
		if h.State == fleet.HostGone {
			continue
		}
		images, models := h.Inventory.Images, h.Inventory.Models
		if full != "" {
			models = nil
			images = slices.DeleteFunc(slices.Clone(images), func(name string) bool { return name != full })
		}
		out = append(out, fleet.HostImages{
			Host: h.ID, Name: h.Name, DataCenter: h.DataCenter, Connected: h.State == fleet.HostReady, Images: images, Models: models,
			Present: full != "" && len(images) > 0,
		})
	}
	return out, nil
}
