package v2

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
