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

	Limits AccountLimits `json:"limits" doc:"How much it may have, and has. What would be more is refused: 403, quota_exceeded."`
}

// UpdateAccountSettingsRequest is the body with which an account changes what it says of its own money.
type UpdateAccountSettingsRequest struct {
	SpendLimit Maybe[float64] `json:"spendLimit,omitzero" doc:"The most that it lets itself spend, in USD per hour; null: limits.spendPerHour." minimum:"0" maximum:"1000000" example:"20"`
	LowBalance Maybe[float64] `json:"lowBalance,omitzero" doc:"The balance in USD below which an event says so; 0: never; null: a day's spending." minimum:"0" maximum:"1000000" example:"50"`
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
