package v2

// Endpoint is a serverless endpoint. Members that may be null are always there.
type Endpoint struct {
	ID             string            `json:"id" doc:"Endpoint identifier." example:"e4m7x1c9v2b6n8"`
	Name           string            `json:"name" doc:"Name of the endpoint."`
	Type           string            `json:"type" doc:"How requests reach its workers; it never changes." enum:"QUEUE,LOAD_BALANCER"`
	Image          string            `json:"image" doc:"Image reference."`
	Args           string            `json:"args" doc:"Arguments; empty when the image's own command runs."`
	Disk           int               `json:"disk" doc:"Container disk of a worker in GB." minimum:"1"`
	Ports          []string          `json:"ports" doc:"Exposed ports, each number/protocol."`
	Env            map[string]string `json:"env" doc:"Environment variables."`
	Registry       Text              `json:"registry" doc:"Registry credential, or null."`
	Template       Text              `json:"template" doc:"Template that the endpoint was made from, or null."`
	RequestURLs    *RequestURLs      `json:"requestUrls,omitempty" doc:"Where its workers are reached: of a QUEUE endpoint where jobs are submitted and followed, of a LOAD_BALANCER endpoint base and health."`
	GPU            *EndpointGPU      `json:"gpu,omitempty" doc:"GPUs of a worker; on endpoints of GPU workers only."`
	CPU            []CPUConfig       `json:"cpu,omitzero" doc:"vCPUs of a worker, the first that there is room for; on endpoints of CPU workers only."`
	Workers        WorkerBounds      `json:"workers" doc:"How many workers it has."`
	Scaling        Scaling           `json:"scaling" doc:"When it has more workers."`
	DataCenterIDs  []string          `json:"dataCenterIds" doc:"Data centers to choose from; empty: any."`
	NetworkVolumes []string          `json:"networkVolumes" doc:"Network volumes, one in a data center at most; a worker gets that of its own."`
	Models         []string          `json:"modelReferences" gantry:"ours" doc:"Models of a hub that workers find on their host."`
	Timeout        int64             `json:"timeout" doc:"Longest execution of a job in milliseconds, or longest time until a worker answers a request; 0: no limit." minimum:"0"`
	FlashBoot      string            `json:"flashboot" doc:"What becomes of a worker that has idled out." enum:"OFF,FLASHBOOT,PRIORITY_FLASHBOOT"`
	Retries        int               `json:"retries" doc:"How often a job is given out again after its worker was lost." minimum:"0" maximum:"3"`
	FailAfter      int               `json:"failAfter" doc:"Seconds after which jobs fail that can never run; 0: they wait." minimum:"0"`
	WebhookSigned  bool              `json:"webhookSigned" doc:"Calls of webhooks are signed under webhookSecret."`
	Version        uint64            `json:"version" doc:"Number of its newest release."`
	CreatedAt      Time              `json:"createdAt" doc:"When it was made."`
	Rollout        *Rollout          `json:"rollout" doc:"How far its newest release has come while workers are of earlier ones, or null."`
	WaitTimeout    int               `json:"waitTimeout,omitempty" doc:"Seconds that a request waits for a worker; on LOAD_BALANCER endpoints only." minimum:"1"`
	MaxBody        int               `json:"maxBody,omitempty" doc:"MB (10^6 bytes) of a request, and of its answer; on LOAD_BALANCER endpoints only." minimum:"1"`
	Reason         Text              `json:"reason" doc:"Why jobs wait, or null when none need." example:"no worker yet: 1 starting, pulling image 63 %"`
}

// RequestURLs are the addresses of an endpoint: of its queue, where {job_id} stands for the identifier of a job, or of its workers.
type RequestURLs struct {
	Base       string `json:"base,omitempty" doc:"Paths of LOAD_BALANCER workers begin here." example:"https://e4m7x1c9v2b6n8.proxy.example.com"`
	Run        string `json:"run,omitempty"`
	RunSync    string `json:"runSync,omitempty"`
	Status     string `json:"status,omitempty" example:"https://gantry.example.com/v2/e4m7x1c9v2b6n8/status/{job_id}"`
	Stream     string `json:"stream,omitempty"`
	Cancel     string `json:"cancel,omitempty"`
	Retry      string `json:"retry,omitempty"`
	PurgeQueue string `json:"purgeQueue,omitempty"`
	Health     string `json:"health"`
}

// EndpointGPU tells the GPUs of an endpoint's workers.
type EndpointGPU struct {
	Pools         []string `json:"pools" doc:"Pools of GPU types, the preferred first."`
	ExcludedTypes []string `json:"excludedTypes" doc:"GPU types of the pools that no worker gets."`
	Count         int      `json:"count" doc:"GPUs of a worker." minimum:"1"`
	AllowedCUDA   []string `json:"allowedCudaVersions" doc:"CUDA versions of a host that will do; empty: any."`
	MinCUDA       Text     `json:"minCudaVersion" doc:"Least CUDA version of a host, or null."`
}

// WorkerBounds tells how many workers an endpoint has.
type WorkerBounds struct {
	Min         int `json:"min" doc:"Workers that are kept without jobs." minimum:"0"`
	Max         int `json:"max" doc:"Most workers." minimum:"0"`
	IdleTimeout int `json:"idleTimeout,omitempty" doc:"Seconds that a worker stays without a job; absent for a QUEUE endpoint with REQUEST_COUNT, whose scaler alone decides." minimum:"1"`
}

// Scaling is when an endpoint has more workers.
type Scaling struct {
	Type         string   `json:"type" doc:"QUEUE_DELAY by how long jobs wait, REQUEST_COUNT by how many there are." enum:"QUEUE_DELAY,REQUEST_COUNT"`
	QueueDelay   *float64 `json:"queueDelay,omitempty" doc:"Seconds that a job may wait; with QUEUE_DELAY, and only then." minimum:"0.5" maximum:"86400" example:"4"`
	RequestCount *int     `json:"requestCount,omitempty" doc:"Jobs or requests to a worker; with REQUEST_COUNT, and only then." minimum:"1" maximum:"1000000"`
}

// EndpointList is the answer to listing endpoints.
type EndpointList struct {
	Page
	Endpoints []Endpoint `json:"endpoints" doc:"Endpoints, oldest first."`
}

// CreateEndpointRequest is the body that makes an endpoint.
type CreateEndpointRequest struct {
	Name       string  `json:"name" doc:"Name of the endpoint; need not be unique. No control characters." minLength:"1" maxLength:"191" pattern:"^[^\\x00-\\x1f\\x7f-\\x9f]*$" patternDescription:"printable text" example:"embed"`
	Type       string  `json:"type" doc:"How requests reach its workers." enum:"QUEUE,LOAD_BALANCER"`
	Scaling    Scaling `json:"scaling" doc:"When it has more workers. A LOAD_BALANCER endpoint must have REQUEST_COUNT."`
	TemplateID string  `json:"templateId,omitempty" doc:"Serverless template to fill in what the body leaves out; env is merged, the body's values win." minLength:"1" maxLength:"191"`
	EndpointSettings
}

// UpdateEndpointRequest is the body that changes an endpoint; what it leaves out stays as it is.
type UpdateEndpointRequest struct {
	Name    *string  `json:"name,omitempty" doc:"Name of the endpoint; need not be unique. No control characters." minLength:"1" maxLength:"191" pattern:"^[^\\x00-\\x1f\\x7f-\\x9f]*$" patternDescription:"printable text" example:"embed"`
	Type    *string  `json:"type,omitempty" doc:"The endpoint's own type; another is refused (400)." enum:"QUEUE,LOAD_BALANCER"`
	Scaling *Scaling `json:"scaling,omitempty" doc:"When it has more workers. A LOAD_BALANCER endpoint must have REQUEST_COUNT."`
	EndpointSettings
}

// EndpointSettings are the members that making and changing an endpoint have in common; a tag change says what one does to
// an endpoint that exists, where that is something else.
type EndpointSettings struct {
	Image          *string            `json:"image,omitempty" doc:"Image reference, with an optional registry, tag and digest." minLength:"1" maxLength:"512" example:"docker.io/library/nginx:1.29"`
	Args           *string            `json:"args,omitempty" doc:"Replaces the image's command: words as a POSIX shell splits them, or a JSON object with \"entrypoint\" and \"cmd\", lists of strings. Empty keeps the image's own." maxLength:"32768" example:"python -u handler.py"`
	Disk           *int               `json:"disk,omitempty" doc:"Container disk of a worker in GB (10^9 bytes). Default: 20, of CPU workers 10." change:"Container disk of a worker in GB (10^9 bytes)." minimum:"1" maximum:"65536" example:"20"`
	Ports          []string           `json:"ports,omitzero" doc:"Ports to expose, each number/protocol: 1 to 65535, http or tcp; at most 10 of http, none twice." change:"Ports to expose, in place of all there are: 1 to 65535, http or tcp; at most 10 of http, none twice." maxItems:"40" pattern:"^[0-9]{1,8}/(http|tcp)$" patternDescription:"number/protocol with the protocol http or tcp" example:"[\"8080/http\",\"22/tcp\"]"`
	Env            map[string]string  `json:"env,omitzero" doc:"Environment variables, at most 50. Names are letters, digits and underscores, at most 256; values have at most 32768 characters and no NUL." change:"Environment variables, in place of all there are; at most 50." maxProperties:"50" example:"{\"MODEL\":\"small\"}"`
	Registry       Maybe[string]      `json:"registry,omitzero" doc:"Registry credential for a private image, or null: none." minLength:"1" maxLength:"191"`
	GPU            *WantedEndpointGPU `json:"gpu,omitempty" doc:"GPUs of a worker. Exactly one of gpu and cpu must be set (400 otherwise)." change:"GPUs of a worker; an endpoint of CPU workers cannot have any (400)."`
	CPU            []CreateCPUConfig  `json:"cpu,omitzero" doc:"vCPUs of a worker, the first that there is room for. Exactly one of gpu and cpu must be set (400 otherwise)." change:"vCPUs of a worker, in place of all there are; an endpoint of GPU workers cannot have any (400)." minItems:"1" maxItems:"16"`
	Workers        *WantedWorkers     `json:"workers,omitempty" doc:"How many workers it has."`
	DataCenterIDs  []string           `json:"dataCenterIds,omitzero" doc:"Data centers to choose from; omitted or empty: any." change:"Data centers to choose from, in place of all there are; empty: any." maxItems:"32" minLength:"1" maxLength:"64" example:"[\"EU-RO-1\"]"`
	NetworkVolumes []string           `json:"networkVolumes,omitzero" doc:"Network volumes, one in a data center at most (400 otherwise); a worker gets that of its own." change:"Network volumes, in place of all there are; one in a data center at most (400 otherwise)." maxItems:"32" minLength:"1" maxLength:"191" example:"[\"v8d2k9s4f1g6j3\"]"`
	Models         []string           `json:"modelReferences,omitzero" gantry:"ours" doc:"Models of a hub that workers find below /runpod-volume/huggingface-cache/hub, each named once; the revision after the colon is a branch, tag or commit, main where there is none. A worker starts once they are on its host." change:"Models of a hub that workers find, in place of all there are." maxItems:"8" minLength:"1" maxLength:"256" example:"[\"https://huggingface.co/org/name:main\"]"`
	Timeout        *int64             `json:"timeout,omitempty" doc:"Longest execution of a job in milliseconds, or, of a LOAD_BALANCER endpoint, longest time until a worker answers a request (default 330000); 0: no limit." minimum:"0" maximum:"604800000" default:"300000"`
	WaitTimeout    *int               `json:"waitTimeout,omitempty" doc:"Seconds that a request waits for a worker; 120 where a create of a LOAD_BALANCER endpoint names none. Refused for a QUEUE endpoint (422)." minimum:"1" maximum:"3600" example:"120"`
	MaxBody        *int               `json:"maxBody,omitempty" doc:"MB (10^6 bytes) of a request, and of its answer; 30 where a create of a LOAD_BALANCER endpoint names none. Refused for a QUEUE endpoint (422)." minimum:"1" maximum:"10000" example:"30"`
	FlashBoot      *string            `json:"flashboot,omitempty" doc:"What becomes of a worker that has idled out." enum:"OFF,FLASHBOOT,PRIORITY_FLASHBOOT" default:"OFF"`
	Retries        *int               `json:"retries,omitempty" doc:"How often a job is given out again after its worker was lost." minimum:"0" maximum:"3" default:"1"`
	FailAfter      *int               `json:"failAfter,omitempty" doc:"Seconds after which jobs fail that can never run; 0: they wait." minimum:"0" maximum:"604800" default:"600"`
	WebhookSecret  *Hidden            `json:"webhookSecret,omitempty" doc:"Secret under which calls of webhooks are signed (X-Gantry-Signature); it is never shown. Empty: they are not signed." maxLength:"256" pattern:"^([!-~]{16,})?$" patternDescription:"16 or more printable characters without spaces, or empty" example:"placeholder-secret"`
}

// WantedEndpointGPU asks for the GPUs of workers.
type WantedEndpointGPU struct {
	Pools         []string `json:"pools,omitzero" doc:"Pools of GPU types as GET /v2/catalog/gpus names them, the preferred first. Must be there in a create. In a change without excludedTypes it ends all exclusions." minItems:"1" maxItems:"32" minLength:"1" maxLength:"64" example:"[\"ADA_80_PRO\"]"`
	ExcludedTypes []string `json:"excludedTypes,omitzero" doc:"GPU types of the pools that no worker gets." maxItems:"64" minLength:"1" maxLength:"191"`
	Count         *int     `json:"count,omitempty" doc:"GPUs of a worker; 1 where a create names none." minimum:"1" maximum:"64" example:"1"`
	AllowedCUDA   []string `json:"allowedCudaVersions,omitzero" doc:"Only hosts whose CUDA version is one of these, as major.minor; empty: any. Excludes minCudaVersion (400)." maxItems:"32" maxLength:"16" pattern:"^\\d+\\.\\d+$" patternDescription:"major.minor" example:"[\"12.8\"]"`
	MinCUDA       *string  `json:"minCudaVersion,omitempty" doc:"Only hosts whose CUDA version is this or newer, as major.minor; empty: any. Excludes allowedCudaVersions (400)." maxLength:"16" pattern:"^(\\d+\\.\\d+)?$" patternDescription:"major.minor" example:"12.4"`
}

// WantedWorkers says how many workers an endpoint has; what is left out stays, or is the default.
type WantedWorkers struct {
	Min         *int `json:"min,omitempty" doc:"Workers that are kept without jobs; 0 where a create names none. Not above max (400)." minimum:"0" maximum:"1000"`
	Max         *int `json:"max,omitempty" doc:"Most workers; 3 where a create names none." minimum:"0" maximum:"1000" example:"3"`
	IdleTimeout *int `json:"idleTimeout,omitempty" doc:"Seconds that a worker stays without a job; 10 where a create names none. Refused for a QUEUE endpoint with REQUEST_COUNT (422)." minimum:"1" maximum:"3600" example:"10"`
}
