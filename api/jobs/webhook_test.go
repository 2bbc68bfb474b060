package jobs

import (
	"testing"
	"time"

	"gantry/fleet"
)

// TestTheRecordOfAWebhook is the job's with its input; nothing else that was submitted is in it, least of all keys.
func TestTheRecordOfAWebhook(t *testing.T) {
	delay, ran := 20*time.Millisecond, 3*time.Second
	v := &fleet.JobView{ID: "a-u1", Status: "COMPLETED", Ended: true, Delay: &delay, Execution: &ran, Worker: "w", Output: []byte(`{"b":2}`), Attempts: 1}
	to, body, err := Webhook(v, []byte(`{"input":{"a":1},"webhook":"https://x/y","s3Config":{"accessSecret":"s"},"policy":{"ttl":10000}}`))
	const want = `{"id":"a-u1","status":"COMPLETED","delayTime":20,"executionTime":3000,"workerId":"w","output":{"b":2},"attempts":1,"input":{"a":1},"webhook":"https://x/y"}`
	if err != nil || to != "https://x/y" || string(body) != want {
		t.Errorf("%s: %s, %v", to, body, err)
	}
	if _, _, err := Webhook(v, []byte("{")); err == nil {
		t.Error("what is no request has a webhook")
	}
}
