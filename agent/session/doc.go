// Package session keeps one session with the control plane: it joins the cluster, knows where schedulers are, connects, says
// hello, sends heartbeats and inventory, renews the host's certificate, and ends a session in which nothing is heard. What comes down
// goes to the room that registered for its kind of message; what rooms have to tell goes up in turn. The package knows none of them,
// and neither pods nor the ledger.
//
// Any scheduler will do: one that does not lead passes the session on to the leader, or names another to go to. When the leader changes
// the host says hello again on the same connection. What is asked beside the session is asked of the leader. Where schedulers are it
// knows from the operator and from what schedulers told it, which it keeps in the data folder.
package session
