package main

import (
	"strings"
	"testing"
)

// TestWebhookFlags: a range is a range.
func TestWebhookFlags(t *testing.T) {
	for args, fault := range map[string]string{
		"": "", "--webhook-allow 10.0.0.0/8 --loopback-webhooks": "", "--webhook-allow 10.0.0.1/8": "--webhook-allow", "--webhook-allow x": "--webhook-allow",
		"--requests-per-worker 0": "--requests-per-worker",
	} {
		c := settings(t, strings.Fields("--listen localhost:80 "+args)...)
		if err := c.validate(); (err == nil) != (fault == "") || err != nil && !strings.Contains(err.Error(), fault) {
			t.Errorf("%s: %v", args, err)
		}
	}
}
