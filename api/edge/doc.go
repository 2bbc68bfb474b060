// Package edge is where users' connections end: certificates from files, or from a certificate authority by ACME, what
// plain HTTP is answered, and the header that keeps browsers on https.
package edge
