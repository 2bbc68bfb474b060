package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// BillingQuery selects charges. Start and End, or LastN; the zero values leave the choice to the API: the last 30 days.
type BillingQuery struct {
	Kind       string // "", "pods", "serverless", "endpoints", "network-volumes" or "clusters"
	ID         string // of one resource of the kind; not for "" and "endpoints"
	Start, End time.Time
	LastN      int    // the last buckets
	Bucket     string // hour, day, week, month or year
}

// billingIDs names the parameter, and the member of a record, that says which resource.
var billingIDs = map[string]string{
	"pods": "podId", "serverless": "serverlessId", "network-volumes": "networkVolumeId", "clusters": "clusterId",
}

// BillingRecord is what was charged in one bucket, for one resource where they are told apart.
type BillingRecord struct {
	Start, End time.Time
	ID         string             // of the resource; empty when they are not told apart
	Amounts    map[string]float64 // USD by component, such as gpuAmount; totalAmount is their sum
}

// UnmarshalJSON reads a record of any kind.
func (r *BillingRecord) UnmarshalJSON(data []byte) error {
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(data, &raw); err != nil {
		return err
	}
	*r = BillingRecord{Amounts: map[string]float64{}}
	texts := map[string]any{"startTime": &r.Start, "endTime": &r.End}
	for _, name := range billingIDs {
		texts[name] = &r.ID
	}
	for name, value := range raw {
		var err error
		if into, ok := texts[name]; ok {
			err = json.Unmarshal(value, into)
		} else if strings.HasSuffix(name, "Amount") {
			var amount float64
			err = json.Unmarshal(value, &amount)
			r.Amounts[name] = amount
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", name, err)
		}
	}
	return nil
}

// Billing is the answer to a BillingQuery.
type Billing struct {
	Records  []BillingRecord `json:"records"`
	Metadata struct {
		Query struct {
			Start  time.Time `json:"startTime"`
			End    time.Time `json:"endTime"`
			Bucket string    `json:"bucketSize"`
		} `json:"query"`
		RecordCount int                `json:"recordCount"`
		Totals      map[string]float64 `json:"totals"` // USD by component
	} `json:"metadata"`
}

// Billing reads charges.
func (c *Client) Billing(ctx context.Context, q BillingQuery) (Answer[Billing], error) {
	query, path := url.Values{}, "/v2/billing"
	if q.Kind != "" {
		path += "/" + word(q.Kind)
	}
	if name := billingIDs[q.Kind]; name != "" {
		setText(query, name, q.ID)
	}
	if !q.Start.IsZero() {
		query.Set("startTime", q.Start.UTC().Format(time.RFC3339))
	}
	if !q.End.IsZero() {
		query.Set("endTime", q.End.UTC().Format(time.RFC3339))
	}
	setNumber(query, "lastN", q.LastN)
	setText(query, "bucketSize", q.Bucket)
	return call[Billing](ctx, c, http.MethodGet, path, query, nil)
}
