package rest

import (
	"cmp"
	"context"
	"net/http"

	"gantry/api/admin"
	"gantry/api/auth"
	"gantry/api/limit"
	"gantry/api/v2"
	"gantry/fleet"
)

func (a *API) registerPlaces() {
	example, center := exampleCenterBody(), centerEntry(fleet.DataCenter{ID: "EU-RO-1", Name: "Bucharest 1", Region: "EUROPE", Country: "RO", GlobalNetwork: true})
	putRoutes(a, "datacenters", "data center",
		entryParam("Data center.", center.ID, centerIDPattern, "letters, digits, '.', '_' and '-', starting with a letter or digit, at most 63"),
		"Hosts make theirs when they join. One with hosts or network volumes cannot be deleted.", example, center,
		admin.DataCenterEntryList{DataCenters: []admin.DataCenterEntry{center}}, listCenterEntries, putDataCenter,
		CatalogEntryService.DeleteDataCenter)

	const text = " Prices are USD per GB and month; an hour is 1/730 of a month."
	read := route{
		method: http.MethodGet, path: "/admin/v1/storage-prices", id: "getStoragePrices", tag: "Operators", summary: "Get the prices of storage",
		text: "Returns the prices of storage." + text, scope: auth.Read(fleet.GroupAdmin), limit: limit.PerAccount, status: http.StatusOK,
		out: exampleStoragePrices(),
	}
	write := read
	write.method, write.id, write.summary, write.scope = http.MethodPut, "putStoragePrices", "Set the prices of storage", auth.Write(fleet.GroupAdmin)
	write.text, write.in = "Replaces all prices of storage; they hold for charges that begin from now on."+text, exampleStoragePrices()
	on(a, read, func(ctx context.Context, svc CatalogEntryService, _ *call, _ *none) (*admin.StoragePrices, error) {
		return show(storageRecord)(svc.StoragePrices(ctx))
	})
	on(a, write, func(ctx context.Context, svc CatalogEntryService, _ *call, in *admin.StoragePrices) (*admin.StoragePrices, error) {
		p := storagePrices(*in)
		return show(storageRecord)(p, svc.PutStoragePrices(ctx, p))
	})
}

func listCenterEntries(ctx context.Context, svc CatalogService, _ *call, _ *none) (*admin.DataCenterEntryList, error) {
	view, err := svc.Catalog(ctx, fleet.CatalogQuery{})
	all, err := showAll(centerEntry)(view.Centers, err)
	return &admin.DataCenterEntryList{DataCenters: all}, err
}

func putDataCenter(ctx context.Context, svc CatalogEntryService, c *call, in *admin.PutDataCenterRequest) (*admin.DataCenterEntry, error) {
	dc := fleet.DataCenter{
		ID: fleet.DataCenterID(c.args.text("id")), Name: in.Name, Region: in.Region, GlobalNetwork: in.GlobalNetwork, Country: in.Country, Compliance: in.Compliance,
	}
	if in.Underlay == wordPrivate {
		dc.Underlay = fleet.UnderlayPrivate
	}
	return show(centerEntry)(dc, svc.PutDataCenter(ctx, dc))
}

// The words for fleet.Underlay.
const (
	wordEncrypted = "encrypted"
	wordPrivate   = string(fleet.UnderlayPrivate)
)

func centerEntry(dc fleet.DataCenter) admin.DataCenterEntry {
	return admin.DataCenterEntry{
		ID: string(dc.ID), Country: v2.Text(dc.Country), GlobalNetwork: dc.GlobalNetwork, Compliance: append([]string{}, dc.Compliance...),
		Underlay: cmp.Or(string(dc.Underlay), wordEncrypted), PutDataCenterRequest: admin.PutDataCenterRequest{Name: dc.Name, Region: dc.Region},
	}
}

func storagePrices(in admin.StoragePrices) fleet.StoragePrices {
	return fleet.StoragePrices{
		ContainerDisk: fleet.MoneyUSD(in.ContainerDisk), PersistentRunning: fleet.MoneyUSD(in.PersistentRunning),
		PersistentStopped: fleet.MoneyUSD(in.PersistentStopped), VolumeFirst: fleet.MoneyUSD(in.VolumeFirst), VolumeBeyond: fleet.MoneyUSD(in.VolumeBeyond),
		FastFirst: fleet.MoneyUSD(in.FastFirst), FastBeyond: fleet.MoneyUSD(in.FastBeyond),
	}
}

func storageRecord(p fleet.StoragePrices) admin.StoragePrices {
	return admin.StoragePrices{
		ContainerDisk: p.ContainerDisk.USD(), PersistentRunning: p.PersistentRunning.USD(), PersistentStopped: p.PersistentStopped.USD(),
		VolumeFirst: p.VolumeFirst.USD(), VolumeBeyond: p.VolumeBeyond.USD(), FastFirst: p.FastFirst.USD(), FastBeyond: p.FastBeyond.USD(),
	}
}

func exampleCenterBody() admin.PutDataCenterRequest {
	return admin.PutDataCenterRequest{Name: "Bucharest 1", Region: "EUROPE", Country: "RO", GlobalNetwork: true, Compliance: []string{"GDPR"}}
}

func exampleStoragePrices() admin.StoragePrices {
	return admin.StoragePrices{
		ContainerDisk: 0.1, PersistentRunning: 0.1, PersistentStopped: 0.2, VolumeFirst: 0.07, VolumeBeyond: 0.05, FastFirst: 0.14, FastBeyond: 0.1,
	}
}
