package rest

import (
	"cmp"
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"gantry/api/auth"
	"gantry/api/limit"
	"gantry/fleet"
)

// DataCenterEntry is a data center, for operators.
type DataCenterEntry struct {
	ID string `json:"id" doc:"Data center." example:"EU-RO-1"`
	PutDataCenterRequest
	Country       *string  `json:"country" doc:"ISO 3166-1 alpha-2, or null." example:"RO"`
	GlobalNetwork bool     `json:"globalNetwork" doc:"Whether pods here can join the account's private network."`
	Underlay      string   `json:"underlay" doc:"How its hosts reach each other for private networks." enum:"encrypted,private"`
	Compliance    []string `json:"compliance" doc:"Certificates."`
}

// PutDataCenterRequest is the body that puts a data center.
type PutDataCenterRequest struct {
	Name          string   `json:"name" doc:"Name." minLength:"1" maxLength:"191" pattern:"^[^\\x00-\\x1f\\x7f-\\x9f]*$" patternDescription:"printable text" example:"Bucharest 1"`
	Region        string   `json:"region" doc:"Part of the world." enum:"NORTH_AMERICA,SOUTH_AMERICA,EUROPE,ASIA,MIDDLE_EAST,AFRICA,OCEANIA,ANTARCTICA,UNKNOWN" example:"EUROPE"`
	Country       string   `json:"country,omitempty" doc:"ISO 3166-1 alpha-2; omitted: not known." pattern:"^[A-Z]{2}$" patternDescription:"two capital letters" example:"RO"`
	GlobalNetwork bool     `json:"globalNetwork,omitempty" doc:"Whether pods here can join the account's private network." default:"false"`
	Underlay      string   `json:"underlay,omitempty" doc:"How its hosts reach each other for private networks. encrypted: WireGuard; private: plain VXLAN, for a wire that nobody else can read or write. What goes to other data centers is always encrypted." enum:"encrypted,private" default:"encrypted" example:"encrypted"`
	Compliance    []string `json:"compliance,omitempty" doc:"Certificates." maxItems:"12" enum:"GDPR,ISO_IEC_27001,ISO_14001,PCI_DSS,HITRUST,SOC_1_TYPE_2,SOC_2_TYPE_2,SOC_3_TYPE_2,ITAR,FISMA_HIGH,HIPAA,RENEWABLE" example:"[\"GDPR\"]"`
}

// DataCenterEntryList is the answer to listing data centers for operators.
type DataCenterEntryList struct {
	Page
	DataCenters []DataCenterEntry `json:"dataCenters" doc:"Data centers."`
}

// StoragePrices are the prices of storage, in USD per GB and month, of which a year has 12.
type StoragePrices struct {
	ContainerDisk     float64 `json:"containerDisk" doc:"Container disk while the pod is charged, USD per GB and month." minimum:"0" maximum:"1000" example:"0.1"`
	PersistentRunning float64 `json:"persistentRunning" doc:"Persistent mount while the pod is charged, USD per GB and month." minimum:"0" maximum:"1000" example:"0.1"`
	PersistentStopped float64 `json:"persistentStopped" doc:"Persistent mount while it is not, USD per GB and month." minimum:"0" maximum:"1000" example:"0.2"`
	VolumeFirst       float64 `json:"volumeFirst" doc:"First 1000 GB of each STANDARD network volume, USD per GB and month." minimum:"0" maximum:"1000" example:"0.07"`
	VolumeBeyond      float64 `json:"volumeBeyond" doc:"What a STANDARD network volume has above, USD per GB and month." minimum:"0" maximum:"1000" example:"0.05"`
	FastFirst         float64 `json:"fastFirst" doc:"First 1000 GB of each HIGH_PERFORMANCE network volume, USD per GB and month." minimum:"0" maximum:"1000" example:"0.14"`
	FastBeyond        float64 `json:"fastBeyond" doc:"What a HIGH_PERFORMANCE network volume has above, USD per GB and month." minimum:"0" maximum:"1000" example:"0.1"`
}

func (a *API) registerPlaces() {
	example, center := exampleCenterBody(), centerEntry(fleet.DataCenter{ID: "EU-RO-1", Name: "Bucharest 1", Region: "EUROPE", Country: "RO", GlobalNetwork: true})
	putRoutes(a, "datacenters", "data center",
		entryParam("Data center.", center.ID, centerIDPattern, "letters, digits, '.', '_' and '-', starting with a letter or digit, at most 63"),
		"Hosts make theirs when they join. One with hosts or network volumes cannot be deleted.", example, center,
		DataCenterEntryList{DataCenters: []DataCenterEntry{center}}, a.listCenterEntries, a.putDataCenter,
		func(ctx context.Context, id string) error { return a.svc.DeleteDataCenter(ctx, fleet.DataCenterID(id)) })

	const text = " Prices are USD per GB and month; an hour is 1/730 of a month."
	read := route{
		method: http.MethodGet, path: "/admin/v1/storage-prices", id: "getStoragePrices", tag: "Operators", summary: "Get the prices of storage",
		text: "Returns the prices of storage." + text, scope: auth.Read(fleet.GroupAdmin), limit: limit.PerAccount, status: http.StatusOK,
		out: exampleStoragePrices(),
	}
	write := read
	write.method, write.id, write.summary, write.scope = http.MethodPut, "putStoragePrices", "Set the prices of storage", auth.Write(fleet.GroupAdmin)
	write.text, write.in = "Replaces all prices of storage; they hold for charges that begin from now on."+text, exampleStoragePrices()
	handle(a, read, func(ctx context.Context, _ *call, _ *none) (*StoragePrices, error) {
		return show(storageRecord)(a.svc.StoragePrices(ctx))
	})
	handle(a, write, func(ctx context.Context, _ *call, in *StoragePrices) (*StoragePrices, error) {
		p := in.prices()
		return show(storageRecord)(p, a.svc.PutStoragePrices(ctx, p))
	})
}

func (a *API) registerTemplateSource() {
	handle(a, route{
		method: http.MethodPut, path: "/admin/v1/templates/{id}/source", id: "setTemplateSource", tag: "Operators", summary: "Set the source of a public template",
		text:  "Says in which slice of the public catalog a template is. 400: it is not public. 404: there is no such template.",
		scope: auth.Write(fleet.GroupAdmin), limit: limit.PerAccount, status: http.StatusOK, params: []*huma.Param{templateIDParam()},
		in: TemplateSourceRequest{Source: "verified"}, out: exampleTemplate(),
	}, func(ctx context.Context, c *call, in *TemplateSourceRequest) (*Template, error) {
		id, err := pathID[fleet.TemplateID](c, "template")
		if err != nil {
			return nil, err
		}
		return show(publicRecord)(a.svc.SetTemplateSource(ctx, id, fleet.TemplateSource(in.Source)))
	})
}

// TemplateSourceRequest is the body that says where a public template is listed.
type TemplateSourceRequest struct {
	Source string `json:"source" doc:"Slice of the public catalog." enum:"official,verified,community" example:"verified"`
}

func (a *API) listCenterEntries(ctx context.Context) (*DataCenterEntryList, error) {
	view, err := a.entries(ctx)
	all, err := showAll(centerEntry)(view.Centers, err)
	return &DataCenterEntryList{DataCenters: all}, err
}

func (a *API) putDataCenter(ctx context.Context, id string, in *PutDataCenterRequest) (*DataCenterEntry, error) {
	dc := fleet.DataCenter{
		ID: fleet.DataCenterID(id), Name: in.Name, Region: in.Region, GlobalNetwork: in.GlobalNetwork, Country: in.Country, Compliance: in.Compliance,
	}
	if in.Underlay == wordPrivate {
		dc.Underlay = fleet.UnderlayPrivate
	}
	return show(centerEntry)(dc, a.svc.PutDataCenter(ctx, dc))
}

// The words for fleet.Underlay.
const (
	wordEncrypted = "encrypted"
	wordPrivate   = string(fleet.UnderlayPrivate)
)

func centerEntry(dc fleet.DataCenter) DataCenterEntry {
	return DataCenterEntry{
		ID: string(dc.ID), Country: textOrNull(dc.Country), GlobalNetwork: dc.GlobalNetwork, Compliance: append([]string{}, dc.Compliance...),
		Underlay: cmp.Or(string(dc.Underlay), wordEncrypted), PutDataCenterRequest: PutDataCenterRequest{Name: dc.Name, Region: dc.Region},
	}
}

func (in StoragePrices) prices() fleet.StoragePrices {
	return fleet.StoragePrices{
		ContainerDisk: fleet.MoneyUSD(in.ContainerDisk), PersistentRunning: fleet.MoneyUSD(in.PersistentRunning),
		PersistentStopped: fleet.MoneyUSD(in.PersistentStopped), VolumeFirst: fleet.MoneyUSD(in.VolumeFirst), VolumeBeyond: fleet.MoneyUSD(in.VolumeBeyond),
		FastFirst: fleet.MoneyUSD(in.FastFirst), FastBeyond: fleet.MoneyUSD(in.FastBeyond),
	}
}

func storageRecord(p fleet.StoragePrices) StoragePrices {
	return StoragePrices{
		ContainerDisk: p.ContainerDisk.USD(), PersistentRunning: p.PersistentRunning.USD(), PersistentStopped: p.PersistentStopped.USD(),
		VolumeFirst: p.VolumeFirst.USD(), VolumeBeyond: p.VolumeBeyond.USD(), FastFirst: p.FastFirst.USD(), FastBeyond: p.FastBeyond.USD(),
	}
}

func exampleCenterBody() PutDataCenterRequest {
	return PutDataCenterRequest{Name: "Bucharest 1", Region: "EUROPE", Country: "RO", GlobalNetwork: true, Compliance: []string{"GDPR"}}
}

func exampleStoragePrices() StoragePrices {
	return StoragePrices{
		ContainerDisk: 0.1, PersistentRunning: 0.1, PersistentStopped: 0.2, VolumeFirst: 0.07, VolumeBeyond: 0.05, FastFirst: 0.14, FastBeyond: 0.1,
	}
}
