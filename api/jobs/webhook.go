package jobs

import (
	"encoding/json"

	"gantry/api/v2"
	"gantry/fleet"
)

// Webhook returns where a job's owner wants to be told of its end, and the record that is sent there: the job's, with its input and that
// address (wire-facts.md, §2.5). request is what was submitted.
func Webhook(v *fleet.JobView, request []byte) (to string, body []byte, err error) {
	out := struct {
		v2.Job
		Webhook string `json:"webhook"`
	}{Job: recordOf(v)}
	if err := json.Unmarshal(request, &out); err != nil {
		return "", nil, err
	}
	body, err = json.Marshal(&out)
	return out.Webhook, body, err
}
