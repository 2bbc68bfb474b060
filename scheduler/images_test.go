package scheduler

import (
	"context"
	"slices"
	"testing"

	"gantry/fleet"
)

// imageWorld has four hosts in two data centers: of host-b the image is known, host-c is away, host-d is gone.
func imageWorld(t *testing.T) *world {
	w := newWorld(t)
	has := func(refs ...string) hostOption { return func(inv *fleet.Inventory) { inv.Images = refs } }
	w.addHost("host-a", "dc-1", h100, 2, has("docker.io/library/alpine:latest"))
	w.addHost("host-b", "dc-2", h100, 2, has("docker.io/library/busybox:latest", "ghcr.io/x/y:1"))
	w.addHost("host-c", "dc-2", h100, 2)
	w.addHost("host-d", "dc-2", h100, 2)
	w.lose("host-c")
	if err := w.svc.RemoveHost(context.Background(), "host-d"); err != nil {
		t.Fatal(err)
	}
	return w
}

func TestPrefetchAsksTheHostsThatAreMeant(t *testing.T) {
	w, ctx := imageWorld(t), context.Background()
	const full = "docker.io/library/busybox:latest"
	for name, tc := range map[string]struct {
		q    fleet.PrefetchRequest
		want []fleet.HostID // that were asked
	}{
		"all":           {fleet.PrefetchRequest{Image: "busybox"}, []fleet.HostID{"host-a", "host-b"}},
		"a data center": {fleet.PrefetchRequest{Image: full, Centers: []fleet.DataCenterID{"dc-2"}}, []fleet.HostID{"host-b"}},
		"a host":        {fleet.PrefetchRequest{Image: "busybox:latest", Hosts: []fleet.HostID{"host-a"}}, []fleet.HostID{"host-a"}},
		"one that is away": {
			fleet.PrefetchRequest{Image: "busybox", Hosts: []fleet.HostID{"host-c"}}, nil,
		},
		"a host elsewhere": {
			fleet.PrefetchRequest{Image: "busybox", Hosts: []fleet.HostID{"host-a"}, Centers: []fleet.DataCenterID{"dc-2"}}, nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			image, hosts, err := w.svc.PrefetchImage(ctx, tc.q)
			if err != nil || image != full {
				t.Fatalf("%q, %v", image, err)
			}
			var got []fleet.HostID
			for _, h := range hosts {
				got = append(got, h.Host)
				if h.Present != (h.Host == "host-b") {
					t.Errorf("%s has it: %t", h.Host, h.Present)
				}
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("asked %v, want %v", got, tc.want)
			}
		})
	}
	for name, tc := range map[string]struct {
		q    fleet.PrefetchRequest
		code fleet.Code
		text string
	}{
		"no reference":           {fleet.PrefetchRequest{Image: "Not An Image"}, fleet.CodeInvalid, "image"},
		"unknown host":           {fleet.PrefetchRequest{Image: "busybox", Hosts: []fleet.HostID{"host-z"}}, fleet.CodeNotFound, ""},
		"a host that is gone":    {fleet.PrefetchRequest{Image: "busybox", Hosts: []fleet.HostID{"host-d"}}, fleet.CodeNotFound, ""},
		"unknown data center":    {fleet.PrefetchRequest{Image: "busybox", Centers: []fleet.DataCenterID{"dc-9"}}, fleet.CodeNotFound, ""},
		"one of them is unknown": {fleet.PrefetchRequest{Image: "busybox", Hosts: []fleet.HostID{"host-a", "host-z"}}, fleet.CodeNotFound, ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := w.svc.PrefetchImage(ctx, tc.q)
			refused(t, err, tc.code, tc.text)
		})
	}
}

func TestImagesOfHosts(t *testing.T) {
	w, ctx := imageWorld(t), context.Background()
	all, err := w.svc.Images(ctx, "")
	if err != nil || len(all) != 3 || len(all[1].Images) != 2 || all[1].Present || !all[0].Connected || all[2].Connected {
		t.Errorf("%+v, %v", all, err)
	}
	one, err := w.svc.Images(ctx, "ghcr.io/x/y:1")
	if err != nil || len(one) != 3 || one[0].Present || !one[1].Present || !slices.Equal(one[1].Images, []string{"ghcr.io/x/y:1"}) {
		t.Errorf("%+v, %v", one, err)
	}
	_, err = w.svc.Images(ctx, "A B")
	refused(t, err, fleet.CodeInvalid, "image")
}
