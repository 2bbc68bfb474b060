package v2

// Template is a reusable configuration of pods and endpoints. Members that may be null are always there.
type Template struct {
	ID           string            `json:"id" doc:"Template identifier." example:"t5f8k2m7q1w4z9"`
	Name         string            `json:"name" doc:"Name of the template."`
	Image        string            `json:"image" doc:"Image reference."`
	Args         string            `json:"args" doc:"Arguments; empty when the image's own command runs."`
	Disk         int               `json:"disk" doc:"Container disk in GB." minimum:"1"`
	Ports        []string          `json:"ports" doc:"Exposed ports, each number/protocol."`
	Env          map[string]string `json:"env" doc:"Environment variables."`
	Registry     Text              `json:"registry" doc:"Registry credential of its owner, or null; null to others."`
	Mounts       TemplateMounts    `json:"mounts" doc:"Storage mounts; {} when there are none."`
	Serverless   bool              `json:"serverless" doc:"Whether it is for serverless endpoints rather than pods."`
	Public       bool              `json:"public" doc:"Whether every account may read and use it."`
	Category     string            `json:"category" doc:"What the image is for." enum:"CPU,NVIDIA,AMD"`
	StartSSH     bool              `json:"startSsh" doc:"Whether pods get the account's SSH keys in PUBLIC_KEY."`
	StartJupyter bool              `json:"startJupyter" doc:"Whether pods get a generated JUPYTER_PASSWORD."`
	AllowedCUDA  []string          `json:"allowedCudaVersions" doc:"CUDA versions of a host that will do; empty: any."`
	Source       Text              `json:"source" doc:"Slice of the public catalog: official, verified or community; null unless it is public."`
	CreatedAt    Time              `json:"createdAt" doc:"When it was made."`
}

// TemplateMounts are the storage mounts that a template gives to pods.
type TemplateMounts struct {
	Persistent *PersistentMount `json:"persistent,omitempty" doc:"Host-local storage; not for CPU pods."`
}

// TemplateList is the answer to listing templates.
type TemplateList struct {
	Page
	Templates []Template `json:"templates" doc:"Templates, oldest first."`
}

// CreateTemplateRequest is the body that makes a template.
type CreateTemplateRequest struct {
	Name  string `json:"name" doc:"Name of the template; need not be unique. No control characters." minLength:"1" maxLength:"191" pattern:"^[^\\x00-\\x1f\\x7f-\\x9f]*$" patternDescription:"printable text" example:"notebook"`
	Image string `json:"image" doc:"Image reference, with an optional registry, tag and digest." minLength:"1" maxLength:"512" example:"docker.io/library/nginx:1.29"`
	TemplateSettings
}

// UpdateTemplateRequest is the body that changes a template. What is left out stays.
type UpdateTemplateRequest struct {
	Name  *string `json:"name,omitempty" doc:"Name of the template. No control characters." minLength:"1" maxLength:"191" pattern:"^[^\\x00-\\x1f\\x7f-\\x9f]*$" patternDescription:"printable text" example:"notebook"`
	Image *string `json:"image,omitempty" doc:"Image reference, with an optional registry, tag and digest." minLength:"1" maxLength:"512" example:"docker.io/library/nginx:1.29"`
	TemplateSettings
}

// TemplateSettings are the members that making and changing a template have in common; a tag change says what one does to
// a template that exists, where that is something else.
type TemplateSettings struct {
	Args         *string           `json:"args,omitempty" doc:"Replaces the image's command: words as a POSIX shell splits them, or a JSON object with \"entrypoint\" and \"cmd\", lists of strings. Empty keeps the image's own." change:"Replaces the image's command; empty keeps the image's own." maxLength:"32768" example:"python train.py --epochs 3"`
	Disk         *int              `json:"disk,omitempty" doc:"Container disk in GB (10^9 bytes), wiped at every start. Default: 20, for CPU templates 10." change:"Container disk in GB (10^9 bytes), wiped at every start." minimum:"1" maximum:"65536" example:"20"`
	Ports        []string          `json:"ports,omitzero" doc:"Ports to expose, each number/protocol: 1 to 65535, http or tcp; at most 10 of http, none twice." change:"Ports to expose, in place of all there are: 1 to 65535, http or tcp; at most 10 of http, none twice." maxItems:"40" pattern:"^[0-9]{1,8}/(http|tcp)$" patternDescription:"number/protocol with the protocol http or tcp" example:"[\"8080/http\",\"22/tcp\"]"`
	Env          map[string]string `json:"env,omitzero" doc:"Environment variables, at most 50. Names are letters, digits and underscores, at most 256; values have at most 32768 characters and no NUL." change:"Environment variables, in place of all there are; at most 50." maxProperties:"50" example:"{\"EPOCHS\":\"3\"}"`
	Registry     Maybe[string]     `json:"registry,omitzero" doc:"Registry credential for a private image, or null. Only the owner's pods get it." change:"Registry credential for a private image; null takes it away." minLength:"1" maxLength:"191"`
	Mounts       *TemplateMounts   `json:"mounts,omitempty" doc:"Storage mounts of pods." change:"Storage mounts of pods; {} changes nothing."`
	Serverless   *bool             `json:"serverless,omitempty" doc:"For serverless endpoints rather than pods." default:"false"`
	Public       *bool             `json:"public,omitempty" doc:"Lets every account read and use it, its env included." default:"false"`
	Category     *string           `json:"category,omitempty" doc:"What the image is for." enum:"CPU,NVIDIA,AMD" default:"NVIDIA"`
	StartSSH     *bool             `json:"startSsh,omitempty" doc:"Give pods the account's SSH keys in PUBLIC_KEY, unless env sets it." default:"true"`
	StartJupyter *bool             `json:"startJupyter,omitempty" doc:"Give pods a generated JUPYTER_PASSWORD, unless env sets it." default:"true"`
	AllowedCUDA  []string          `json:"allowedCudaVersions,omitzero" doc:"CUDA versions of a host that will do; empty: any." change:"CUDA versions of a host that will do; [] clears the list." maxItems:"32" maxLength:"16" pattern:"^\\d+\\.\\d+$" patternDescription:"major.minor" example:"[\"12.8\"]"`
}
