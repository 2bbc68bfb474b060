package admin

import "gantry/api/v2"

// GatewayList is the answer that lists gateways.
type GatewayList struct {
	Gateways []Gateway `json:"gateways" doc:"The gateways, by id."`
}

// Gateway is a process that carries requests to pods and has no copy of the state.
type Gateway struct {
	ID           string   `json:"id" doc:"Gateway identifier." example:"g5t8w2n6k9r3v7"`
	Name         string   `json:"name" doc:"Name." example:"edge-1"`
	Address      string   `json:"address" doc:"Where hosts reach it." example:"10.0.0.21:8444"`
	DataCenterID v2.Text  `json:"dataCenterId" doc:"Data center whose hosts it reaches, or null: all hosts."`
	State        string   `json:"state" doc:"Whether the leader hears it, and whether it takes requests: draining has some under way, drained none." enum:"connected,draining,drained,silent"`
	Requests     int      `json:"requests" doc:"Requests under way, WebSockets among them, as it said last."`
	Hosts        int      `json:"hosts" doc:"Hosts that are connected with it, as it said last."`
	Version      v2.Text  `json:"version" doc:"Version of its program, or null when it was not heard."`
	JoinedAt     v2.Time  `json:"joinedAt" doc:"When it joined."`
	DrainingAt   *v2.Time `json:"drainingAt" doc:"Since when it takes no new requests, or null."`
	HeardAt      *v2.Time `json:"heardAt" doc:"When the leader heard it last, or null: not since it leads."`
}

// CreateGatewayTokenRequest is the body that makes a token for a new gateway.
type CreateGatewayTokenRequest struct {
	DataCenterID string `json:"dataCenterId,omitempty" doc:"Data center whose hosts the gateway reaches; left out: all hosts." minLength:"1" maxLength:"63" pattern:"^[A-Za-z0-9][A-Za-z0-9._-]*$" patternDescription:"letters, digits, '.', '_' and '-', starting with a letter or digit" example:"EU-RO-1"`
	TTLSeconds   int    `json:"ttlSeconds,omitempty" doc:"Seconds until the token ends to work, 60 to 604800." minimum:"60" maximum:"604800" default:"3600" example:"3600"`
}
