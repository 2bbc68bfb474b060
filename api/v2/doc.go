// Package v2 holds the records of the users' API: what requests and answers look like on the wire, with the bounds and
// sentences of the OpenAPI document in the tags of their members. Faces, the client and tests share them.
//
// A pointer or a Text that is always there may be null; what may be left out has omitempty or omitzero. The package
// checks nothing and knows nothing of HTTP: a face checks the shape of requests, the service their meaning.
package v2
