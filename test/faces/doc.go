// Package faces tests that all faces of the API show one model: what is written through one is read through the others
// under the names of a table.
package faces
