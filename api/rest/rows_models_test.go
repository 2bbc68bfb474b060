package rest_test

import (
	"strings"
	"testing"
	"time"

	"gantry/fleet"
	"gantry/test/plane"
)

func init() {
	addRows(modelRows, "200 public models", "204 public model", "422 public model", "409 public model is an endpoint", "400 public model", "404 endpoint of a public model")
	addRows(func() []row { return nil }, "200 object storage", "204 object storage", "422 object storage", "400 object storage in use")
}

const modelBody = `{"endpointId":"<endpoint-1>","description":"Draws an image.","inputSchema":{"type":"object","properties":{"prompt":{"type":"string"}},"required":["prompt"]},` +
	`"price":{"request":0.02,"unit":0.001,"counted":"megapixels","maxUnits":16},"limits":{"jobs":100}}`

// ownModel makes an endpoint and a public model with a job that waits.
func ownModel(t *testing.T, p *plane.Plane) {
	t.Helper()
	_, err := p.PutModel(t.Context(), fleet.Model{
		ID: "sample-image", Endpoint: makeEndpoint(t, p, func(*fleet.EndpointSpec) {}), Price: fleet.ModelPrice{Request: fleet.MoneyUSD(0.02)},
		Limits: fleet.ModelLimits{Jobs: 100},
	})
	must(t, err)
}

// called is ownModel with a job of Other's account that waits.
func called(t *testing.T, p *plane.Plane) {
	t.Helper()
	ownModel(t, p)
	p.CallModel(plane.Other, "sample-image", "hold-1")
}

// earned is called a day ago by Other and by User, and completed.
func earned(t *testing.T, p *plane.Plane) {
	t.Helper()
	called(t, p)
	p.CallModel(plane.User, "sample-image", "hold-2")
	p.SettleCall("hold-1", fleet.MoneyUSD(0.02))
	p.SettleCall("hold-2", fleet.MoneyUSD(0.01))
	p.Advance(24 * time.Hour)
}

// ownStore makes a storage of results' files, and filled puts a file there.
func ownStore(t *testing.T, p *plane.Plane) {
	t.Helper()
	_, err := p.PutObjectStore(t.Context(), fleet.ObjectStore{
		Endpoint: "https://s3.example.com", Region: "EU-RO-1", Bucket: "results", Prefix: "models/", AccessKey: "user_1",
		AccountBytes: 50 * fleet.GB, AllBytes: 1000 * fleet.GB,
	}, "s3cret-value")
	must(t, err)
}

func filled(t *testing.T, p *plane.Plane) {
	t.Helper()
	ownStore(t, p)
	p.KeepFile(plane.User, "a.png", 1000)
}

func modelRows() []row {
	v := func(name, rule, method, path, body string, setup func(*testing.T, *plane.Plane)) row {
		return operator("models", name, rule, method, "models"+path, body, setup)
	}
	put := func(name, rule string, change ...string) row {
		return v("put-"+name, rule, "PUT", "/sample-image", strings.NewReplacer(change...).Replace(modelBody), ownEndpoint)
	}
	const listed, wrong = "200 public models", "422 public model"
	billing := func(name, key, path string) row {
		return row{topic: "models", name: name, rule: "200 billing", method: "GET", path: "/v2/billing" + path, key: key, setup: earned}
	}
	store := func(name, rule, method, body string, setup func(*testing.T, *plane.Plane)) row {
		return operator("models", "storage-"+name, rule, method, "object-storage", body, setup)
	}
	const (
		storeBody = `{"endpoint":"https://s3.example.com","region":"EU-RO-1","bucket":"results","prefix":"models/","accessKey":"user_1","secret":"s3cret-value","accountGb":50,"allGb":1000}`
		stored    = "200 object storage"
	)
	return []row{
		store("none", stored, "GET", "", nil), store("get", stored, "GET", "", ownStore), store("put", stored, "PUT", storeBody, nil),
		byUser(store("put", "", "PUT", storeBody, nil)), store("put-same-key", stored, "PUT", strings.Replace(storeBody, `"secret":"s3cret-value",`, "", 1), ownStore),
		store("put-no-secret", "422 object storage", "PUT", strings.Replace(storeBody, `"secret":"s3cret-value",`, "", 1), nil),
		store("put-endpoint", "422 object storage", "PUT", strings.Replace(storeBody, "https://", "ftp://", 1), nil),
		store("put-bucket", "422 object storage", "PUT", strings.Replace(storeBody, `"results"`, `"../x"`, 1), nil),
		store("put-prefix", "422 object storage", "PUT", strings.Replace(storeBody, `"models/"`, `"/models"`, 1), nil),
		store("put-room", "422 bound", "PUT", strings.Replace(storeBody, `"allGb":1000`, `"allGb":0`, 1), nil),
		store("put-elsewhere", "400 object storage in use", "PUT", strings.Replace(storeBody, `"results"`, `"other"`, 1), filled),
		store("delete", "204 object storage", "DELETE", "", ownStore), store("delete-filled", "400 object storage in use", "DELETE", "", filled),
		put("new", listed), byUser(put("new", "")), given(put("again", listed), ownModel), put("closed", listed, `"price"`, `"closed":true,"price"`),
		put("free", listed, `"request":0.02,"unit":0.001,"counted":"megapixels","maxUnits":16`, `"request":0`),
		put("nothing", "422 missing field", modelBody, `{}`), put("unknown", "422 unknown property", `"price"`, `"owner":"x","price"`),
		put("price", "422 bound", "0.02", "1000.01"), put("jobs", "422 bound", `"jobs":100`, `"jobs":0`), put("units-alone", wrong, `"counted":"megapixels",`, ""),
		put("schema", wrong, `"type":"string"`, `"type":"text"`), put("schema-type", wrong, `"inputSchema":{"type":"object"`, `"inputSchema":{"type":"array"`), put("schema-text", wrong, `"required":`, `"$ref":"http://127.0.0.1/s3cret-value","required":`),
		put("no-endpoint", "404 endpoint of a public model", "<endpoint-1>", missingID),
		v("put-id", "422 pattern", "PUT", "/Sample", modelBody, ownEndpoint), v("put-word", wrong, "PUT", "/network-volumes", modelBody, ownEndpoint),
		v("put-endpoint", "409 public model is an endpoint", "PUT", "/<endpoint-1>", modelBody, ownEndpoint),
		given(put("balanced", "400 public model"), func(t *testing.T, p *plane.Plane) {
			makeEndpoint(t, p, func(s *fleet.EndpointSpec) {
				s.Type = fleet.EndpointBalanced
				s.Scaler = fleet.Scaler{Type: fleet.ScaleByRequests, Value: 4}
			})
		}),
		v("list", listed, "GET", "", "", called), byUser(v("list", "", "GET", "", "", nil)), v("get", listed, "GET", "/sample-image", "", ownModel),
		v("get-missing", "404 missing object", "GET", "/nothing", "", nil),
		v("delete", "204 public model", "DELETE", "/sample-image", "", ownModel), v("delete-called", "400 public model", "DELETE", "/sample-image", "", called),
		v("delete-missing", "404 missing object", "DELETE", "/nothing", "", nil),
		{topic: "models", name: "endpoint-of-a-model", rule: "400 public model", method: "DELETE", path: "/v2/serverless/<endpoint-1>", key: plane.User, setup: ownModel},
		billing("billing-caller", plane.Other, "/endpoints"), billing("billing-owner", plane.User, "/endpoints"), billing("billing-account", plane.User, ""),
	}
}
