package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"gantry/api/v2"
)

// AuditLine says who changed what, and from where.
type AuditLine = v2.AuditLine

// AuditQuery selects lines of the audit log. What is empty selects nothing.
type AuditQuery struct {
	From, To          time.Time
	Operation, Object string
	Account           string // of operators alone
	Operator          bool   // lines of all accounts
	Limit             int    // the newest; 0: all
}

// Audit reads lines of the audit log, newest first, each as it is. It ends with the error of on.
func (c *Client) Audit(ctx context.Context, q AuditQuery, on func(raw []byte, line AuditLine) error) error {
	path, query := "/v2/audit", url.Values{"format": {"jsonl"}}
	if q.Operator {
		path = "/admin/v1/audit"
	}
	for name, text := range map[string]string{"operation": q.Operation, "object": q.Object, "accountId": q.Account} {
		if text != "" {
			query.Set(name, text)
		}
	}
	for name, at := range map[string]time.Time{"from": q.From, "to": q.To} {
		if !at.IsZero() {
			query.Set(name, at.UTC().Format(time.RFC3339))
		}
	}
	if q.Limit > 0 {
		query.Set("limit", strconv.Itoa(q.Limit))
	}
	req, err := c.request(ctx, http.MethodGet, path, query, nil)
	if err != nil {
		return err
	}
	res, err := c.send(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	for lines := bufio.NewReader(res.Body); ; {
		raw, err := lines.ReadSlice('\n')
		if errors.Is(err, io.EOF) && len(raw) == 0 {
			return nil
		}
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		var line AuditLine
		if err == nil {
			err = json.Unmarshal(raw, &line)
		}
		if err != nil {
			return fmt.Errorf("read the audit log: %w", err)
		}
		if err := on(raw[:len(raw)-1], line); err != nil {
			return err
		}
	}
}
