package v2

// Registry is a credential for private images. Its user name and password are never shown.
type Registry struct {
	ID   string `json:"id" doc:"Registry credential identifier." example:"r3g8k2m7q1w4z9"`
	Name string `json:"name" doc:"Name of the credential."`
}

// RegistryList is the answer to listing registry credentials.
type RegistryList struct {
	Page
	Registries []Registry `json:"registries" doc:"The account's registry credentials, oldest first."`
}

// CreateRegistryRequest is the body that makes a registry credential.
type CreateRegistryRequest struct {
	Name     string `json:"name" doc:"Name of the credential; need not be unique. No control characters." minLength:"1" maxLength:"191" pattern:"^[^\\x00-\\x1f\\x7f-\\x9f]*$" patternDescription:"printable text" example:"team images"`
	Username string `json:"username" doc:"User name at the registry. No control characters and no colon." minLength:"1" maxLength:"256" pattern:"^[^\\x00-\\x1f\\x7f:]*$" patternDescription:"text without control characters and colons" example:"robot"`
	Password Hidden `json:"password" doc:"Password or token at the registry. No NUL." minLength:"1" maxLength:"16384" pattern:"^[^\\x00]*$" patternDescription:"text without NUL" example:"placeholder"`
}

// Delegation is a repository of a cloud provider that was delegated to the service's own identity.
type Delegation struct {
	ID                string `json:"id" doc:"Delegation identifier." example:"d4n8w0zq5r7d2a"`
	Name              Text   `json:"name" doc:"Name, or null."`
	DelegatorUserID   string `json:"delegatorUserId" doc:"Account that delegates."`
	AWSUser           string `json:"awsUser" doc:"AWS account of the repository."`
	Repository        string `json:"repository" doc:"Repository."`
	Tag               string `json:"tag" doc:"Tag."`
	AWSRegion         string `json:"awsRegion" doc:"AWS region of the repository."`
	DockerRegistryURI string `json:"dockerRegistryUri" doc:"Address of the registry."`
	CreatedAt         Time   `json:"createdAt" doc:"When it was made."`
}

// DelegationList is the answer to listing delegations.
type DelegationList struct {
	Page
	Delegations []Delegation `json:"delegations" doc:"The account's delegations."`
}

// CreateDelegationRequest is the body that delegates a repository.
type CreateDelegationRequest struct {
	Resource string `json:"resource" doc:"ARN of the ECR repository." minLength:"1" maxLength:"512" pattern:"^arn:aws[a-z-]*:ecr:[a-z0-9-]+:[0-9]{12}:repository/[a-z0-9][a-z0-9._/-]*$" patternDescription:"the ARN of an ECR repository" example:"arn:aws:ecr:eu-west-1:000000000000:repository/team/app"`
	Name     string `json:"name,omitempty" doc:"Name of the delegation. No control characters." maxLength:"191" pattern:"^[^\\x00-\\x1f\\x7f-\\x9f]*$" patternDescription:"printable text"`
}
