package v2

// Account is an account's record with its money.
type Account struct {
	ID         string  `json:"id" doc:"Account identifier." example:"a5f8k2m7q1w4z9"`
	Name       string  `json:"name" doc:"Name."`
	Balance    float64 `json:"balance" doc:"What is left of its credit now, in USD, to 10^-9; negative when it was metered without credit."`
	HourlyRate float64 `json:"hourlyRate" doc:"What it spends now, in USD per hour, storage included." minimum:"0"`
	Prepaid    bool    `json:"prepaid" doc:"Whether it spends credit: without one hour of a pod's cost the pod is refused (402), and without any credit pods are ended. Others are metered all the same and never stopped."`
	Egress     string  `json:"egress" doc:"What its pods reach outside of their private networks. open: everything but hosts; none: nothing; answers to who reaches them, and names, still work." enum:"open,none"`
	CreatedAt  Time    `json:"createdAt" doc:"When it was made."`

	SpendLimit      *float64 `json:"spendLimit" doc:"The most that it lets itself spend, in USD per hour; null: limits.spendPerHour."`
	LowBalance      *float64 `json:"lowBalance" doc:"The balance in USD below which an event says so; 0: never; null: a day's spending."`
	LowBalanceSince *Time    `json:"lowBalanceSince" doc:"When its balance became low."`
	Webhook         *Webhook `json:"webhook" doc:"Where its events are sent; null: nowhere."`

	Limits AccountLimits `json:"limits" doc:"How much it may have, and has. What would be more is refused: 403, quota_exceeded."`
}

// UpdateAccountSettingsRequest is the body with which an account changes its own settings.
type UpdateAccountSettingsRequest struct {
	SpendLimit Maybe[float64] `json:"spendLimit,omitzero" doc:"The most that it lets itself spend, in USD per hour; null: limits.spendPerHour." minimum:"0" maximum:"1000000" example:"20"`
	LowBalance Maybe[float64] `json:"lowBalance,omitzero" doc:"The balance in USD below which an event says so; 0: never; null: a day's spending." minimum:"0" maximum:"1000000" example:"50"`

	Webhook Maybe[WebhookRequest] `json:"webhook,omitzero" doc:"Where its events are sent; null: nowhere."`
}

// Webhook is where the events of an account are sent.
type Webhook struct {
	Address string   `json:"address" doc:"Its URL without path and query, which may be secret." example:"https://ops.example.com"`
	Kinds   []string `json:"kinds" doc:"The kinds of events that are sent."`
	Signed  bool     `json:"signed" doc:"Calls are signed under its secret (X-Gantry-Signature)."`
	At      *Time    `json:"at" doc:"When a call was last taken or given up; null: there was none."`
	Error   Text     `json:"error" doc:"Why that call was given up, after three tries 10 s apart; null: it was taken."`
}

// WebhookRequest says where the events of an account are to be sent.
type WebhookRequest struct {
	URL    string   `json:"url" doc:"http or https URL, which gets POST with {\"events\":[…]}." minLength:"1" maxLength:"2048" example:"https://ops.example.com/gantry"`
	Kinds  []string `json:"kinds,omitempty" doc:"Only events of these kinds; absent: of all that the key may read." minItems:"1" maxItems:"32"`
	Secret *Hidden  `json:"secret,omitempty" doc:"Secret under which calls are signed (X-Gantry-Signature); it is never shown. Empty: they are not signed. Absent: as it is." maxLength:"256" pattern:"^([!-~]{16,})?$" patternDescription:"16 or more printable characters without spaces, or empty" example:"placeholder-secret"`
}

// LimitUse is a limit of an account and how much of it is used.
type LimitUse struct {
	Limit int64   `json:"limit" doc:"How much the account may have." minimum:"0" maximum:"1000000000000" example:"1000"`
	Used  float64 `json:"used" doc:"How much it has now; more than the limit where that was lowered." minimum:"0" example:"12"`
}

// AccountLimits are the limits of an account.
type AccountLimits struct {
	Pods               LimitUse `json:"pods" doc:"Pods that are not terminated."`
	RunningPods        LimitUse `json:"runningPods" doc:"Pods that run or are being started."`
	GPUs               LimitUse `json:"gpus" doc:"GPUs of those."`
	VCPUs              LimitUse `json:"vcpus" doc:"vCPUs of those that are CPU pods."`
	NetworkVolumes     LimitUse `json:"networkVolumes" doc:"Network volumes, with those of which something is left after their deletion."`
	NetworkVolumeGB    LimitUse `json:"networkVolumeGB" doc:"GB of network volumes."`
	SpecificationBytes LimitUse `json:"specificationBytes" doc:"Bytes of texts in the specifications of pods that are not terminated: names, images, arguments, environment."`
	Endpoints          LimitUse `json:"endpoints" doc:"Serverless endpoints."`
	Workers            LimitUse `json:"workers" doc:"Workers of endpoints that run or are being started; frozen ones do not count. They are running pods, too."`
	Clusters           LimitUse `json:"clusters" doc:"Clusters."`
	SpendPerHour       LimitUse `json:"spendPerHour" doc:"USD per hour, storage included."`
}

// SSHKeys are the SSH public keys of an account.
type SSHKeys struct {
	Keys []string `json:"keys" doc:"Public keys as lines of an authorized_keys file without options, at most 100 of at most 16384 characters, and of at most 32768 bytes together." maxItems:"100" maxLength:"16384" pattern:"^(ssh|ecdsa|sk)-[^\\s]+ [^\\s]+([ \\t][^\\n\\r]*)?$" patternDescription:"a public key such as ssh-ed25519 AAAA… comment, on one line" example:"[\"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA me@laptop\"]"`
}
