package clients

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"gantry/test/devtest"
)

// volume is what the tests read of a network volume's record.
type volume struct {
	ID, Name, DataCenter, DataCenterID, Type, Status string
	Size                                             int
}

// volumeTools makes a network volume, shares it between two pods, grows it under them and deletes it.
func volumeTools(t *testing.T, m *mcp) {
	center := suite.info.DataCenterID
	var where struct{ NetworkVolumeTypes []string }
	m.good(t, &where, "get-data-center", args{"id": center})
	if !slices.Equal(where.NetworkVolumeTypes, []string{"STANDARD"}) {
		t.Errorf("the data center offers %q", where.NetworkVolumeTypes)
	}
	m.refused(t, 422, "invalid", "create-network-volume", body(args{"name": "datasets", "size": 10, "dataCenter": "XX-1"}))
	m.refused(t, 400, "rule", "create-network-volume", body(args{"name": "datasets", "size": 10, "dataCenter": center, "type": "HIGH_PERFORMANCE"}))
	var made, got volume
	m.good(t, &made, "create-network-volume", body(args{"name": "datasets", "size": 10, "dataCenter": center}))
	if made.ID == "" || made.Type != "STANDARD" || made.DataCenter != center || made.Size != 10 {
		t.Errorf("the volume: %+v", made)
	}
	first := sharer(t, m, made.ID, "echo from-first > /data/note")
	reach(t, m, first, "RUNNING")
	m.good(t, &got, "get-network-volume", args{"id": made.ID})
	if got.Status != "READY" {
		t.Errorf("while a pod has it: %+v", got)
	}
	second := sharer(t, m, made.ID, "cat /data/note; echo id=$RUNPOD_VOLUME_ID")
	err := devtest.Until(reachTimeout, func() error {
		logs := m.tool(t, "stream-pod-logs", args{"podId": second, "source": "container", "maxWaitMs": 500})
		if !strings.Contains(logs.text, "from-first") || !strings.Contains(logs.text, "id="+made.ID) {
			return fmt.Errorf("logs of the second pod: %s", logs.text)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	m.good(t, &got, "update-network-volume", of(made.ID, args{"name": "corpus", "size": 12}))
	m.refused(t, 400, "rule", "update-network-volume", of(made.ID, args{"size": 11}))
	m.refused(t, 400, "in_use", "delete-network-volume", args{"id": made.ID})
	var list struct{ NetworkVolumes []volume }
	m.good(t, &list, "list-network-volumes", nil)
	if len(list.NetworkVolumes) != 1 || list.NetworkVolumes[0].Size != 12 || got.Name != "corpus" {
		t.Errorf("after the update: %+v, %+v", got, list)
	}
	for _, id := range []string{first, second} {
		m.good(t, nil, "delete-pod", args{"id": id})
	}
	charged(t, m)
	m.good(t, nil, "delete-network-volume", args{"id": made.ID})
	m.refused(t, 404, "not_found", "get-network-volume", args{"id": made.ID})
	m.refused(t, 404, "not_found", "delete-network-volume", args{"id": made.ID})
}

// sharer makes a pod with a network volume at /data that runs a shell line and stays.
func sharer(t *testing.T, m *mcp, volume, line string) string {
	t.Helper()
	var made pod
	m.good(t, &made, "create-pod", body(args{
		"name": "sharer", "image": devtest.Image, "cpu": args{"id": "cpu3c", "vcpuCount": 2},
		"args":   `{"entrypoint":["sh","-c"],"cmd":["` + line + `; ` + strings.ReplaceAll(devtest.Sleeper, `"`, `\"`) + `"]}`,
		"mounts": args{"network": []args{{"volumeId": volume, "path": "/data"}}},
	}))
	return made.ID
}

// TestVersionOne speaks version 1 of the API, as older clients do.
func TestVersionOne(t *testing.T) {
	base := suite.info.API + "/v1/networkvolumes"
	center := `"dataCenterId":"` + suite.info.DataCenterID + `"`
	status, _, text := curl(t, "-H", jsonBody, "-d", `{"name":"old","size":10,`+center+`}`, base)
	var made volume
	if err := json.Unmarshal([]byte(text), &made); status != "200" || err != nil || made.ID == "" || made.DataCenterID != suite.info.DataCenterID {
		t.Fatalf("%s %s: %v", status, text, err)
	}
	var list []volume
	status, _, text = curl(t, base)
	if err := json.Unmarshal([]byte(text), &list); status != "200" || err != nil || len(list) != 1 || list[0] != made {
		t.Errorf("%s %s: %v", status, text, err)
	}
	for _, c := range []struct {
		want, part string
		args       []string
	}{
		{"200", `"size":11`, []string{"-H", jsonBody, "-X", "PATCH", "-d", `{"size":11}`, base + "/" + made.ID}},
		{"200", `"name":"older"`, []string{"-H", jsonBody, "-d", `{"name":"older"}`, base + "/" + made.ID + "/update"}},
		{"400", `"error":"a network volume can grow, but not shrink"`, []string{"-H", jsonBody, "-X", "PATCH", "-d", `{"size":10}`, base + "/" + made.ID}},
		{"422", `"message":"Request validation failed.`, []string{"-H", jsonBody, "-d", `{"name":"a","size":9,` + center + `}`, base}},
		{"401", `"error":"`, []string{"-H", "Authorization: Basic eA==", base}},
		{"404", `"error":"`, []string{suite.info.API + "/v1/nothing"}},
		{"405", `"error":"`, []string{"-X", "PUT", base}},
		{"204", "", []string{"-X", "DELETE", base + "/" + made.ID}},
		{"404", `"error":"`, []string{base + "/" + made.ID}},
	} {
		if status, header, text := curl(t, c.args...); status != c.want || !strings.Contains(text, c.part) {
			t.Errorf("%q: want %s %s\n%s\n%s", c.args, c.want, c.part, header, text)
		}
	}
}

// charged waits until the account's volume has cost anything: one that lives for some milliseconds is free.
func charged(t *testing.T, m *mcp) {
	t.Helper()
	var bill struct {
		Metadata struct{ Totals map[string]float64 }
	}
	err := devtest.Until(reachTimeout, func() error {
		m.good(t, &bill, "list-network-volume-billing", args{"lastN": 2, "bucketSize": "hour"})
		if bill.Metadata.Totals["standardAmount"] <= 0 {
			return errors.New("the volume has cost nothing")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
