package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"strconv"

	"gantry/fleet"
)

const (
	pageSize = 2000   // of one answer of a list that is too long for one
	maxPages = 10_000 // of one list
)

// list reads a list: in one answer or, where it is too long for one, in several, which become one.
func list[T any](ctx context.Context, c *Client, path string, query url.Values) (Answer[T], error) {
	answer, err := call[T](ctx, c, http.MethodGet, path, query, nil)
	var p *Problem
	if !errors.As(err, &p) || p.Code != fleet.CodeTooMany {
		return answer, err
	}
	query = maps.Clone(query)
	if query == nil {
		query = url.Values{}
	}
	query.Set("limit", strconv.Itoa(pageSize))
	all := map[string]json.RawMessage{}
	for range maxPages {
		page, err := call[map[string]json.RawMessage](ctx, c, http.MethodGet, path, query, nil)
		if err != nil {
			return answer, err
		}
		var next string
		if raw, more := page.Value["next"]; more {
			if err := json.Unmarshal(raw, &next); err != nil {
				return answer, fmt.Errorf("read where the list goes on: %w", err)
			}
		}
		delete(page.Value, "next")
		for name, part := range page.Value {
			all[name] = joinedLists(all[name], part)
		}
		if next != "" {
			query.Set("cursor", next)
			continue
		}
		if answer.Raw, err = json.Marshal(all); err == nil {
			err = json.Unmarshal(answer.Raw, &answer.Value)
		}
		return answer, err
	}
	return answer, fmt.Errorf("the list does not end after %d pages", maxPages)
}

// joinedLists appends one list's text to another's; what is no list is replaced.
func joinedLists(a, b json.RawMessage) json.RawMessage {
	a, b = bytes.TrimSpace(a), bytes.TrimSpace(b)
	if len(a) < 2 || len(b) < 2 || a[0] != '[' || b[0] != '[' {
		return b
	}
	left, right := bytes.TrimSpace(a[:len(a)-1]), bytes.TrimSpace(b[1:])
	if len(left) > 1 && right[0] != ']' {
		left = append(bytes.Clone(left), ',')
	}
	return append(bytes.Clone(left), right...)
}
