package admin

import (
	"encoding/json"

	"gantry/api/v2"
)

// Model is a public model: an endpoint whose jobs any account with credit may submit, for a price.
type Model struct {
	ID        string `json:"id" doc:"Model: callers' requests go to /v2/{id}/run and its like." example:"sample-image"`
	AccountID string `json:"accountId" doc:"Account of the endpoint, which earns what calls cost."`
	Jobs      int    `json:"jobs" doc:"Jobs that wait or run." minimum:"0"`
	PutModelRequest
	CreatedAt v2.Time `json:"createdAt" doc:"When it was made."`
}

// PutModelRequest is the body that puts a public model.
type PutModelRequest struct {
	EndpointID  string          `json:"endpointId" doc:"Queue endpoint that does the work." minLength:"1" maxLength:"63" example:"e4m7x1c9v2b6n8"`
	Description string          `json:"description,omitempty" doc:"What it does." maxLength:"1000" example:"Draws an image."`
	InputSchema json.RawMessage `json:"inputSchema,omitempty" doc:"JSON Schema (draft 2020-12) of a job's input, of at most 64 KiB, which refers to its own parts only; omitted: any object. Its keywords are checked (422)."`
	Price       ModelPrice      `json:"price" doc:"What a completed job costs. Jobs that were submitted before a change cost what they did."`
	Limits      ModelLimits     `json:"limits" doc:"What one account may ask of it."`
	Closed      bool            `json:"closed,omitempty" doc:"Whether it takes no new jobs."`
}

// ModelPrice is what a completed job of a public model costs.
type ModelPrice struct {
	Request  float64 `json:"request" doc:"USD for each completed job." minimum:"0" maximum:"1000" example:"0.02"`
	Unit     float64 `json:"unit,omitempty" doc:"USD for each unit beside; goes with counted and maxUnits (422)." minimum:"0" maximum:"1000" example:"0.001"`
	Counted  string  `json:"counted,omitempty" doc:"Member of the output whose number says how many units a job has." maxLength:"256" example:"megapixels"`
	MaxUnits int     `json:"maxUnits,omitempty" doc:"Most units that one job is charged for; so much credit a caller needs." minimum:"0" maximum:"1000000" example:"16"`
}

// ModelLimits bound what one account may ask of a public model.
type ModelLimits struct {
	Jobs int `json:"jobs" doc:"Jobs that wait or run." minimum:"1" maximum:"1000" example:"100"`
}

// ModelList is the answer to listing public models.
type ModelList struct {
	v2.Page
	Models []Model `json:"models" doc:"Public models, by id."`
}

// ObjectStore is where the files of results of public models are.
type ObjectStore struct {
	ObjectStoreShown
	Files int64 `json:"files" doc:"Files that are there now." minimum:"0"`
	Bytes int64 `json:"bytes" doc:"Bytes that they have together." minimum:"0"`
}

// ObjectStoreShown are the settings as they are; all are empty where there is no storage.
type ObjectStoreShown struct {
	Endpoint  string `json:"endpoint" doc:"URL of the S3 server; \"\": there is no storage." example:"https://s3.example.com"`
	Region    string `json:"region" doc:"Region under which requests are signed." example:"EU-RO-1"`
	Bucket    string `json:"bucket" doc:"Bucket." example:"v4m8q2x6z1k5n9"`
	Prefix    string `json:"prefix,omitempty" doc:"What the names of objects begin with." example:"results/"`
	AccessKey string `json:"accessKey" doc:"Access key." example:"user_2mKx7Qw9Zr4Tb6Vn8Ys1Jc3Hd5F"`
	AccountGB int64  `json:"accountGb" doc:"GB that the files of one account may have together." example:"50"`
	AllGB     int64  `json:"allGb" doc:"GB that all files may have together." example:"1000"`
}

// ObjectStoreSettings say how a bucket of S3 is reached, and how much may be in it.
type ObjectStoreSettings struct {
	Endpoint  string `json:"endpoint" doc:"http or https URL of the S3 server, without a path." minLength:"1" maxLength:"512" example:"https://s3.example.com"`
	Region    string `json:"region" doc:"Region under which requests are signed." minLength:"1" maxLength:"512" example:"EU-RO-1"`
	Bucket    string `json:"bucket" doc:"Bucket, which must exist; with gantry-s3 the id of a network volume." minLength:"1" maxLength:"512" example:"v4m8q2x6z1k5n9"`
	Prefix    string `json:"prefix,omitempty" doc:"What the names of objects begin with." maxLength:"512" example:"results/"`
	AccessKey string `json:"accessKey" doc:"Access key." minLength:"1" maxLength:"512" example:"user_2mKx7Qw9Zr4Tb6Vn8Ys1Jc3Hd5F"`
	AccountGB int64  `json:"accountGb" doc:"GB that the files of one account may have together." minimum:"1" maximum:"1000000000" example:"50"`
	AllGB     int64  `json:"allGb" doc:"GB that all files may have together." minimum:"1" maximum:"1000000000" example:"1000"`
}

// PutObjectStoreRequest is the body that sets the storage.
type PutObjectStoreRequest struct {
	ObjectStoreSettings
	Secret v2.Hidden `json:"secret,omitempty" doc:"Secret of the access key; left out: as it is. It is stored encrypted and never shown." maxLength:"512" example:"placeholder"`
}
