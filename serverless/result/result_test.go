package result

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"gantry/fleet"
)

func TestPriced(t *testing.T) {
	flat := fleet.ModelPrice{Request: fleet.MoneyUSD(0.02)}
	counted := fleet.ModelPrice{Request: fleet.Dollar, Unit: fleet.Dollar / 2, Counted: "images", MaxUnits: 4}
	for _, tt := range []struct {
		output string
		price  fleet.ModelPrice
		want   string
		cost   fleet.Money
	}{
		{`{"image_url":"x","seed":12345678901234567890}`, flat, `{"cost":0.02,"image_url":"x","seed":12345678901234567890}`, fleet.MoneyUSD(0.02)},
		{`{"cost":99}`, flat, `{"cost":0.02}`, fleet.MoneyUSD(0.02)},
		{`"text"`, flat, `{"cost":0.02,"result":"text"}`, fleet.MoneyUSD(0.02)},
		{`[1]`, flat, `{"cost":0.02,"result":[1]}`, fleet.MoneyUSD(0.02)},
		{`null`, flat, `{"cost":0.02,"result":null}`, fleet.MoneyUSD(0.02)},
		{``, fleet.ModelPrice{}, `{"cost":0,"result":null}`, 0},
		{`{"images":2}`, counted, `{"cost":2,"images":2}`, 2 * fleet.Dollar},
		{`{"images":1.5}`, counted, `{"cost":2,"images":1.5}`, 2 * fleet.Dollar},
		{`{"images":1e300}`, counted, `{"cost":3,"images":1e300}`, 3 * fleet.Dollar},
		{`{"images":0}`, counted, `{"cost":1,"images":0}`, fleet.Dollar},
	} {
		got, cost, err := Priced([]byte(tt.output), tt.price)
		if err != nil || string(got) != tt.want || cost != tt.cost {
			t.Errorf("%s: got %s, %v, %v", tt.output, got, cost, err)
		}
	}
	for _, output := range []string{`{}`, `{"images":-1}`, `{"images":"2"}`, `{"images":null}`, `"text"`} {
		if got, cost, err := Priced([]byte(output), counted); fleet.CodeOf(err) != fleet.CodeInvalid || got != nil || cost != 0 {
			t.Errorf("%s: got %s, %v, %v", output, got, cost, err)
		}
	}
}

func FuzzPriced(f *testing.F) {
	f.Add(`{"images":2}`)
	f.Add(`[]`)
	f.Fuzz(func(t *testing.T, output string) {
		if !json.Valid([]byte(output)) {
			return
		}
		price := fleet.ModelPrice{Request: 1, Unit: 2, Counted: "images", MaxUnits: 3}
		got, cost, err := Priced([]byte(output), price)
		if err == nil && (!json.Valid(got) || cost < price.Request || cost > price.Most()) {
			t.Errorf("%q: %s, %v", output, got, cost)
		}
	})
}

func TestWithFiles(t *testing.T) {
	for _, tt := range []struct {
		output, want string
		files        int
	}{
		{`{"image_url":"data:image/png;base64,AAEC","seed":12345678901234567890}`, `{"image_url":"https://f/0-image/png-3","seed":12345678901234567890}`, 1},
		{`{"images":["data:image/png;base64,AAEC","plain"]}`, `{"images":["https://f/0-image/png-3","plain"]}`, 1},
		{`{"a":"data:;base64,","text":"x"}`, `{"a":"https://f/0-application/octet-stream-0","text":"x"}`, 1},
		{`{"image_url":"https://example.com/x.png"}`, `{"image_url":"https://example.com/x.png"}`, 0},
		{`{"text":"see data: here","deep":{"a":"data:image/png;base64,AAEC"}}`, `{"text":"see data: here","deep":{"a":"data:image/png;base64,AAEC"}}`, 0},
		{`"data:image/png;base64,AAEC"`, `"data:image/png;base64,AAEC"`, 0},
	} {
		kept := 0
		got, err := WithFiles([]byte(tt.output), func(files []File) (out []string, err error) {
			kept = len(files)
			for i, f := range files {
				out = append(out, fmt.Sprintf("https://f/%d-%s-%d", i, f.Type, len(f.Data)))
			}
			return out, nil
		})
		if err != nil || string(got) != tt.want || kept != tt.files {
			t.Errorf("%s: got %s, %d files, %v", tt.output, got, kept, err)
		}
	}
	many := `{"images":[` + strings.TrimSuffix(strings.Repeat(`"data:image/png;base64,AAEC",`, MaxFiles+1), ",") + `]}`
	for _, output := range []string{`{"a":"data:image/png;base64,###"}`, `{"a":"data:image/png,plain"}`, `{"a":"data:"}`, many} {
		if got, err := WithFiles([]byte(output), nil); fleet.CodeOf(err) != fleet.CodeInvalid || got != nil {
			t.Errorf("%.40s: got %s, %v", output, got, err)
		}
	}
}
