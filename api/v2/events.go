package v2

// Event says that an object changed. Members that may be null are always there.
type Event struct {
	EventID string `json:"eventId" doc:"Identifier of the event: Last-Event-ID to go on behind it."`
	Kind    string `json:"kind" doc:"What the object is."`
	ID      string `json:"id" doc:"Identifier of the object, or its name where it has none."`
	Parent  Text   `json:"parentId" doc:"The endpoint of a worker, or null."`
	Type    string `json:"type" doc:"What happened." enum:"created,changed,deleted,ready,reset"`
	At      *Time  `json:"at" doc:"When, or null where that is not known."`
	Status  Text   `json:"status" doc:"The object's status then, or null."`
	Reason  Text   `json:"reason" doc:"Why it has that status, or null."`
	Record  any    `json:"record" doc:"The object as GET shows it when the event is sent, or null."`
}
