package rest

import (
	"crypto/pbkdf2"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	"github.com/danielgtaylor/huma/v2"

	"gantry/api/v2"
	"gantry/fleet"
)

const (
	onceHeader   = "Idempotency-Key"
	replayHeader = "Idempotent-Replayed"
	oncePattern  = `^[!-~]{1,255}$`
	onceForm     = "1 to 255 visible ASCII characters"

	// onceText is the paragraph of a create's description that tells of repeated requests.
	onceText = "With the header Idempotency-Key the request is done at most once: when it is sent again with the same key within 24 hours, " +
		"the answer is the present record of what the first one made, with the header Idempotent-Replayed. 422: the key was used with another request."
)

// onceParam is the header that makes a create happen at most once.
func onceParam() *huma.Param {
	return &huma.Param{
		Name: onceHeader, In: "header", Description: "Makes the request happen at most once: " + onceForm + ", kept for 24 hours.",
		Schema: &huma.Schema{Type: huma.TypeString, Pattern: oncePattern, PatternDescription: onceForm, Examples: []any{"3f2a7c52-create-trainer"}},
	}
}

// describeOnce documents the header that tells a repeated answer.
func describeOnce(op *huma.Operation, rt route) {
	if !slices.ContainsFunc(rt.params, func(p *huma.Param) bool { return p.Name == onceHeader }) {
		return
	}
	resp := op.Responses[strconv.Itoa(rt.status)]
	if resp.Headers == nil {
		resp.Headers = map[string]*huma.Param{}
	}
	resp.Headers[replayHeader] = &huma.Param{
		Description: "true when the request was done before with the same Idempotency-Key; absent otherwise.",
		Schema:      &huma.Schema{Type: huma.TypeString, Enum: []any{"true"}, Examples: []any{"true"}},
	}
}

// once returns what makes the request with the decoded body happen at most once; nil when it does not ask for that.
// Two requests are the same when method, path and body are; the body's fields are compared, not its text.
// Errors: CodeInvalid for an empty key.
func (c *call) once(body any) (*fleet.Once, error) {
	key := c.args.text(onceHeader)
	if key == "" {
		if len(c.r.Header.Values(onceHeader)) > 0 {
			return nil, fleet.Invalid("header."+onceHeader, "must be "+onceForm)
		}
		return nil, nil
	}
	text, err := json.Marshal(body)
	if err != nil {
		return nil, fmt.Errorf("encode body for its fingerprint: %w", err)
	}
	sum := sha256.New()
	_, _ = fmt.Fprintf(sum, "%s %q\n%s", c.r.Method, c.r.URL.Path, text) // a hash takes everything
	return &fleet.Once{Key: key, Fingerprint: sum.Sum(nil)}, nil
}

// replayed tells the client that its request was done before.
func (c *call) replayed(before bool) {
	if before {
		c.w.Header().Set(replayHeader, "true")
	}
}

// atMostOnce makes what the call asks for, unless that was done before under its idempotency key; body is what the request is
// known by.
func atMostOnce[T any](c *call, body any, create func(*fleet.Once) (made T, replayed bool, err error)) (made T, err error) {
	once, err := c.once(body)
	if err != nil {
		return made, err
	}
	made, replayed, err := create(once)
	c.replayed(replayed)
	return made, err
}

// passwordRounds cost some tens of milliseconds.
const passwordRounds = 200_000

// slow replaces a password in the body by which a request with an idempotency key is known: it must not be found by trying passwords
// on the body's fingerprint.
func (c *call) slow(password *v2.Hidden) error {
	if key := c.args.text(onceHeader); key != "" && *password != "" {
		slow, err := pbkdf2.Key(sha256.New, string(*password), []byte(string(c.who.Account)+" "+key), passwordRounds, sha256.Size)
		if err != nil {
			return fmt.Errorf("derive fingerprint: %w", err)
		}
		*password = v2.Hidden(hex.EncodeToString(slow))
	}
	return nil
}
