package v2

import "gantry/fleet"

// Problem is the body of every answer that is not a success.
type Problem struct {
	Title     string            `json:"title" doc:"Short summary of the status." example:"Unprocessable Entity"`
	Status    int               `json:"status" doc:"HTTP status code." minimum:"400" maximum:"599" example:"422"`
	Detail    string            `json:"detail" doc:"Explanation for people." example:"Request validation failed."`
	Errors    []string          `json:"errors,omitempty" doc:"Single failures, each with a JSON path and the rule." example:"[\"$: missing property 'name'\"]"`
	Code      fleet.Code        `json:"code" doc:"Stable code for programs." example:"invalid"`
	RequestID string            `json:"requestId" doc:"Identifier of the request, also in the header x-request-id." example:"k3n8w0zq5r7d2a"`
	Excluded  []fleet.Exclusion `json:"excluded,omitempty" doc:"With code no_capacity: how many hosts each placement rule refused."`
	Error     string            `json:"error,omitempty" doc:"On paths below /v1 alone: the detail, and each of errors on a line of its own, where clients of version 1 look for it."`
	Message   string            `json:"message,omitempty" doc:"On paths below /v1 alone: the same as error."`
}
