package rest

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/danielgtaylor/huma/v2"
)

// Time is a moment as the API writes it: RFC 3339, UTC, milliseconds.
type Time struct{ time.Time }

const timeForm = "2006-01-02T15:04:05.000Z"

// MarshalJSON writes the moment.
func (t Time) MarshalJSON() ([]byte, error) {
	return []byte(`"` + t.UTC().Format(timeForm) + `"`), nil
}

// UnmarshalJSON reads any RFC 3339 moment.
func (t *Time) UnmarshalJSON(data []byte) error {
	var s string
	if err := json.Unmarshal(data, &s); err != nil {
		return fmt.Errorf("read time: %w", err)
	}
	parsed, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return fmt.Errorf("read time: %w", err)
	}
	t.Time = parsed
	return nil
}

// Schema describes the form.
func (Time) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, Format: "date-time"}
}

// timeOrNull returns nil for the zero time.
func timeOrNull(t time.Time) *Time {
	if t.IsZero() {
		return nil
	}
	return &Time{t}
}

func validTime(s string) bool {
	_, err := time.Parse(time.RFC3339, s)
	return err == nil
}
