package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"gantry/api/admin"
	"gantry/client"
	"gantry/fleet"
)

type adminModelCmd struct {
	List   listCmd          `cmd:"" help:"List the public models."`
	Get    getCmd           `cmd:"" help:"Show a public model."`
	Put    adminModelPutCmd `cmd:"" help:"Create a public model, or change one: its price, for example."`
	Delete deleteCmd        `cmd:"" help:"Delete public models of which no job waits or runs."`
}

var publicModels = noun[admin.Model, admin.ModelList]{
	kind: "public model", bare: true, all: (*client.Client).Models, one: (*client.Client).Model, remove: (*client.Client).DeleteModel,
	items:   func(l admin.ModelList) []admin.Model { return l.Models },
	thing:   func(m admin.Model) thing { return thing{id: m.ID} },
	columns: []string{"ID", "ENDPOINT", "ACCOUNT", "PRICE", "JOBS/ACCOUNT", "JOBS", "OPEN", "DESCRIPTION"},
	row: func(m admin.Model, _ time.Time) []string {
		return []string{
			m.ID, m.EndpointID, m.AccountID, modelPrice(m.Price), fmt.Sprint(m.Limits.Jobs), fmt.Sprint(m.Jobs), yes(!m.Closed), orDash(m.Description),
		}
	},
}

// modelPrice says what a job costs.
func modelPrice(p admin.ModelPrice) string {
	if p.Counted == "" {
		return price(p.Request) + " a job"
	}
	return fmt.Sprintf("%s a job, %s for each of %s, at most %d", price(p.Request), price(p.Unit), p.Counted, p.MaxUnits)
}

type adminModelPutCmd struct {
	ID          string   `arg:"" placeholder:"ID" help:"Id of the model, which callers use: small letters, digits and '-'."`
	Endpoint    string   `placeholder:"ID" help:"Id of the queue endpoint that does the work."`
	Description *string  `placeholder:"TEXT" help:"What the model does."`
	Schema      string   `placeholder:"FILE" help:"File with the JSON Schema of a job's input; - is standard input."`
	Request     *float64 `placeholder:"USD" help:"Price of a completed job."`
	Unit        *float64 `placeholder:"USD" help:"Price of each unit beside; goes with --counted and --max-units."`
	Counted     *string  `placeholder:"NAME" help:"Member of the output that says how many units a job has."`
	MaxUnits    *int     `placeholder:"N" help:"Most units that one job is charged for."`
	Jobs        int      `placeholder:"N" help:"Jobs of one account that may wait or run (1 to 1000); 100 for a new model."`
	Closed      *bool    `negatable:"" help:"It takes no new jobs."`
}

const newModelJobs = 100

// Run makes or changes a public model.
func (cmd adminModelPutCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	now, known, err := publicModels.find(ctx, c, cmd.ID)
	if err != nil {
		return err
	}
	if err := needs("public model", cmd.ID, known || cmd.Endpoint != "" && cmd.Request != nil, "--endpoint and --request"); err != nil {
		return err
	}
	body := now.PutModelRequest
	if !known {
		body.Limits.Jobs = newModelJobs
	}
	body.EndpointID = first(cmd.Endpoint, body.EndpointID)
	if cmd.Jobs != 0 {
		body.Limits.Jobs = cmd.Jobs
	}
	set(&body.Description, cmd.Description)
	set(&body.Price.Request, cmd.Request)
	set(&body.Price.Unit, cmd.Unit)
	set(&body.Price.Counted, cmd.Counted)
	set(&body.Price.MaxUnits, cmd.MaxUnits)
	set(&body.Closed, cmd.Closed)
	if cmd.Schema != "" {
		text, err := a.readFile("--schema", cmd.Schema, fleet.MaxModelSchema)
		if err != nil {
			return err
		}
		if body.InputSchema = json.RawMessage(strings.TrimSpace(text)); !json.Valid(body.InputSchema) {
			return usage("--schema: the file has no JSON")
		}
	}
	m, err := c.PutModel(ctx, cmd.ID, body)
	return publicModels.show(a, m, err)
}
