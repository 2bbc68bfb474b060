// Package session keeps one session with the scheduler that leads: it joins the cluster, knows where schedulers are, connects, says
// hello, sends heartbeats and inventory, renews the host's certificate, and ends a session in which nothing is heard. What comes down
// goes to the room that registered for its kind of message; what rooms have to tell goes up in turn. The package knows none of them,
// and neither pods nor the ledger.
//
// Of several schedulers it follows the one that leads: those that do not name it. Where they are it knows from the operator and from
// what schedulers told it, which it keeps in the data folder.
package session
