package rest

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"gantry/api/admin"
	"gantry/api/auth"
	"gantry/api/limit"
	"gantry/api/v2"
	"gantry/fleet"
)

// ModelService keeps the public models.
type ModelService interface {
	Models(ctx context.Context) ([]fleet.ModelView, error)
	Model(ctx context.Context, id fleet.ModelID) (fleet.ModelView, error)
	// PutModel makes or replaces a model. Of m the caller leaves out Owner and CreatedAt.
	PutModel(ctx context.Context, m fleet.Model) (fleet.ModelView, error)
	DeleteModel(ctx context.Context, id fleet.ModelID) error
}

const modelIDPattern = `^[a-z][a-z0-9-]{1,62}$`

func (a *API) registerModels() {
	read, write := auth.Read(fleet.GroupAdmin), auth.Write(fleet.GroupAdmin)
	id, example := entryParam("Public model.", "sample-image", modelIDPattern, fleet.ModelIDRule), exampleModel()
	on(a, route{
		method: http.MethodGet, path: "/admin/v1/models", id: "listModels", tag: "Operators", summary: "List public models",
		text: "Lists the public models, by id.", scope: read, limit: limit.PerAccount, status: http.StatusOK,
		out: admin.ModelList{Models: []admin.Model{example}},
	}, func(ctx context.Context, svc ModelService, _ *call, _ *none) (*admin.ModelList, error) {
		all, err := showAll(modelRecord)(svc.Models(ctx))
		return &admin.ModelList{Models: all}, err
	})
	on(a, route{
		method: http.MethodGet, path: "/admin/v1/models/{id}", id: "getModel", tag: "Operators", summary: "Get a public model",
		text: "Returns a public model. 404: there is none of this id.", scope: read, limit: limit.PerAccount, status: http.StatusOK,
		params: []*huma.Param{id}, out: example,
	}, func(ctx context.Context, svc ModelService, c *call, _ *none) (*admin.Model, error) {
		return show(modelRecord)(svc.Model(ctx, fleet.ModelID(c.args.text("id"))))
	})
	on(a, route{
		method: http.MethodPut, path: "/admin/v1/models/{id}", id: "putModel", tag: "Operators", summary: "Make or replace a public model",
		text: "Makes an endpoint callable by every account with credit, at /v2/{id}/run and its like, or replaces the model of this id. 400: the endpoint has no " +
			"queue, or there are 1,000 models. 404: there is no such endpoint. 409: an endpoint has this id. 422: a single value is wrong, or inputSchema is no JSON Schema.",
		scope: write, limit: limit.PerAccount, status: http.StatusOK, errors: []int{http.StatusConflict, http.StatusNotFound}, params: []*huma.Param{id},
		in: example.PutModelRequest, out: example,
	}, putModel)
	on(a, route{
		method: http.MethodDelete, path: "/admin/v1/models/{id}", id: "deleteModel", tag: "Operators", summary: "Delete a public model",
		text: "Deletes a public model; its endpoint stays, and what callers have of its jobs cannot be read any more. 400: jobs of it wait or run; close it first. " +
			"404: there is none of this id.",
		scope: write, limit: limit.PerAccount, status: http.StatusNoContent, params: []*huma.Param{id},
	}, func(ctx context.Context, svc ModelService, c *call, _ *none) (*none, error) {
		return nil, svc.DeleteModel(ctx, fleet.ModelID(c.args.text("id")))
	})
}

func putModel(ctx context.Context, svc ModelService, c *call, in *admin.PutModelRequest) (*admin.Model, error) {
	return show(modelRecord)(svc.PutModel(ctx, fleet.Model{
		ID: fleet.ModelID(c.args.text("id")), Endpoint: fleet.EndpointID(in.EndpointID), Description: in.Description, Schema: in.InputSchema,
		Closed: in.Closed, Limits: fleet.ModelLimits{Jobs: in.Limits.Jobs},
		Price: fleet.ModelPrice{
			Request: fleet.MoneyUSD(in.Price.Request), Unit: fleet.MoneyUSD(in.Price.Unit), Counted: in.Price.Counted, MaxUnits: int64(in.Price.MaxUnits),
		},
	}))
}

// checkPutModel finds a schema that does not say that an input is an object, which it always is.
func checkPutModel(in *admin.PutModelRequest) []string {
	var schema struct {
		Type any `json:"type"`
	}
	if len(in.InputSchema) > 0 && (json.Unmarshal(in.InputSchema, &schema) != nil || schema.Type != "object") {
		return []string{"$.inputSchema: must be a JSON Schema whose type is object"}
	}
	return nil
}

func modelRecord(m fleet.ModelView) admin.Model {
	return admin.Model{
		ID: string(m.ID), AccountID: string(m.Owner), Jobs: m.Jobs, CreatedAt: v2.At(m.CreatedAt),
		PutModelRequest: admin.PutModelRequest{
			EndpointID: string(m.Endpoint), Description: m.Description, InputSchema: m.Schema, Closed: m.Closed, Limits: admin.ModelLimits{Jobs: m.Limits.Jobs},
			Price: admin.ModelPrice{
				Request: m.Price.Request.USD(), Unit: m.Price.Unit.USD(), Counted: m.Price.Counted, MaxUnits: int(m.Price.MaxUnits),
			},
		},
	}
}

func exampleModel() admin.Model {
	return modelRecord(fleet.ModelView{Model: fleet.Model{
		ID: "sample-image", Endpoint: "e4m7x1c9v2b6n8", Owner: "a2c4e6g8j1k3m5", Description: "Draws an image.", CreatedAt: exampleTime(0).Time,
		Schema: json.RawMessage(`{"type":"object","properties":{"prompt":{"type":"string","maxLength":1000}},"required":["prompt"]}`),
		Price:  fleet.ModelPrice{Request: fleet.MoneyUSD(0.02)}, Limits: fleet.ModelLimits{Jobs: 100},
	}})
}
