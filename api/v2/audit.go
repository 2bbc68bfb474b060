package v2

// AuditLine says who changed what, and from where.
type AuditLine struct {
	At        Time   `json:"at" doc:"When."`
	AccountID string `json:"accountId" doc:"The account of the key."`
	KeyID     string `json:"keyId" doc:"The key, the pod of a pod's own key, or the session."`
	KeyName   string `json:"keyName" doc:"Name of the key, or login of the person, then."`
	PersonID  Text   `json:"personId" doc:"The person who signed in, or null."`
	Operator  bool   `json:"operator" doc:"Whether the operation is one of operators."`
	Operation string `json:"operation" doc:"The operationId, or the field of a GraphQL mutation."`
	ObjectID  Text   `json:"objectId" doc:"What was changed or made, or null."`
	Face      string `json:"face" doc:"By which API." enum:"v2,v1,admin,graphql,console"`
	Address   Text   `json:"address" doc:"The client's address, or null."`
	Status    int    `json:"status" doc:"The HTTP status of the operation's success."`
}

// AuditLog is a part of the audit log.
type AuditLog struct {
	Lines []AuditLine `json:"lines" doc:"Newest first."`
	Next  string      `json:"next" doc:"The cursor of what follows; empty: that was all."`
}
