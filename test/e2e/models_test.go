package e2e

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"gantry/test/bucket"
	"gantry/test/devtest"
	"gantry/test/program/workerimage"
)

// TestAPublicModel: another account calls a model whose worker is in a real container, pays for it, and reads the picture that lies in a
// bucket of S3 at its signed URL; without credit, with a wrong input and with a changed URL it gets nothing.
func TestAPublicModel(t *testing.T) {
	t.Parallel()
	d := suite.dev
	admin := must[devtest.Info](t)(d.Info()).AdminKey
	id, remove := endpoint(t, d, workerimage.Serve(t, "--handler echo"))
	defer remove()
	url, _ := bucket.Serve(t)
	done[struct{}](t, d, admin, "PUT", "/admin/v1/object-storage", fmt.Sprintf(
		`{"endpoint":%q,"region":%q,"bucket":%q,"accessKey":%q,"secret":%q,"accountGb":1,"allGb":1}`, url, bucket.Region, bucket.Name, bucket.AccessKey, bucket.Secret))
	const model = "e2e-picture"
	done[made](t, d, admin, "PUT", "/admin/v1/models/"+model, fmt.Sprintf(
		`{"endpointId":%q,"price":{"request":0.25},"limits":{"jobs":10},"inputSchema":{"type":"object","properties":{"image_url":{"type":"string"}},"required":["image_url"]}}`, id))
	defer await(t, func() error { // once its last job is settled
		if code, text := ask(t, d, admin, "DELETE", "/admin/v1/models/"+model, ""); code != http.StatusNoContent {
			return errors.New(text)
		}
		return nil
	})

	account := done[made](t, d, admin, "POST", "/admin/v1/accounts", `{"name":"caller"}`).ID
	done[struct{}](t, d, admin, "PATCH", "/admin/v1/accounts/"+account, `{"prepaid":true}`)
	key := done[struct{ APIKey string }](t, d, admin, "POST", "/admin/v1/accounts/"+account+"/keys", `{"name":"k","preset":"all"}`).APIKey
	const input = `{"input":{"image_url":"data:image/png;base64,AAECAwQF"}}`
	if code, text := ask(t, d, key, "POST", "/v2/"+model+"/runsync", input); code != http.StatusPaymentRequired {
		t.Errorf("without credit: %d %s", code, text)
	}
	done[struct{}](t, d, admin, "POST", "/admin/v1/accounts/"+account+"/credits", `{"amount":1}`)
	if code, text := ask(t, d, key, "POST", "/v2/"+model+"/runsync", `{"input":{}}`); code != http.StatusBadRequest || !strings.Contains(text, "$.input: lacks image_url") {
		t.Errorf("a wrong input: %d %s", code, text)
	}
	j := done[job](t, d, key, "POST", "/v2/"+model+"/run", input)
	await(t, func() error {
		if j = done[job](t, d, key, "GET", "/v2/"+model+"/status/"+j.ID, ""); j.Status != "COMPLETED" {
			return fmt.Errorf("%+v", j)
		}
		return nil
	})
	for who, at := range map[string]string{"its owner": "/v2/" + id, "another caller": "/v2/" + model} {
		if code, _ := ask(t, d, "", "GET", at+"/status/"+j.ID, ""); code != http.StatusNotFound {
			t.Errorf("%s reads the job: %d", who, code)
		}
	}
	picture, _ := j.Output["image_url"].(string)
	if j.Output["cost"] != 0.25 || !strings.Contains(picture, "/v2/files/") {
		t.Fatalf("%+v", j.Output)
	}
	for address, want := range map[string]int{picture: http.StatusOK, picture[:len(picture)-1] + "~": http.StatusNotFound} {
		res, err := http.Get(address) //nolint:noctx // of a test
		if err != nil {
			t.Fatal(err)
		}
		body := must[[]byte](t)(io.ReadAll(res.Body))
		if err := res.Body.Close(); err != nil || res.StatusCode != want || want == http.StatusOK && (string(body) != "\x00\x01\x02\x03\x04\x05" || res.Header.Get("Content-Type") != "image/png") {
			t.Errorf("%s: %d %q %v", address, res.StatusCode, body, res.Header)
		}
	}
	await(t, func() error {
		bill := done[struct {
			Metadata struct{ Totals struct{ TotalAmount float64 } }
		}](t, d, key, "GET", "/v2/billing/endpoints", "")
		if bill.Metadata.Totals.TotalAmount != 0.25 {
			return fmt.Errorf("%+v", bill)
		}
		return nil
	})
}
