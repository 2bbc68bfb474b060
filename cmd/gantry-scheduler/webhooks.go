package main

import (
	"context"
	"fmt"
	"net/netip"

	"gantry/api/jobs"
	"gantry/fleet"
	"gantry/serverless/queue"
	"gantry/serverless/webhook"
)

// webhookFlags say where webhooks may lead.
type webhookFlags struct {
	WebhookAllow     []string `help:"Let webhooks lead to private addresses in this range; may be repeated. Without, they lead to public addresses." placeholder:"CIDR"`
	LoopbackWebhooks bool     `help:"Let webhooks lead to this machine's loopback. For development machines alone: every service that listens there can be called."`
}

// sender makes what calls webhooks.
func (f *webhookFlags) sender() (*webhook.Sender, error) {
	var allow []netip.Prefix
	for _, text := range f.WebhookAllow {
		p, err := netip.ParsePrefix(text)
		if err != nil || p != p.Masked() {
			return nil, fmt.Errorf("--webhook-allow %q must be a range like 10.20.0.0/16, without bits beyond its length", text)
		}
		allow = append(allow, p)
	}
	return webhook.NewSender(allow, f.LoopbackWebhooks), nil
}

// tell calls the webhook of a job that has ended. There is nobody to tell of a job that is deleted.
func (d *parts) tell(ctx context.Context, id queue.ID) error {
	view, request, key, err := d.service.EndedJob(id)
	if fleet.CodeOf(err) == fleet.CodeNotFound {
		return nil
	}
	if err != nil {
		return err
	}
	to, record, err := jobs.Webhook(&view, request)
	if err != nil || to == "" {
		return err
	}
	return d.hooks.Send(ctx, to, record, key)
}
