package agent

// moves tells whether the agent itself gets on. It blocks while a write of the ledger hangs.
func (d *daemon) moves() bool {
	d.book.Generation()
	return d.sessions.Moves()
}
