// Package forward lets any scheduler of a cluster serve: one that follows sends each request on to the one that
// leads (Forwarder), and the one that leads takes what the others send (Accept). It changes no request and no
// answer but for the headers between schedulers, passes streams and upgraded connections through, and tries a
// request again only while it is certain that nothing has happened.
package forward
