package v2

// ExecRequest is the first message of an exec session.
type ExecRequest struct {
	Command []string `json:"command" doc:"Program and its arguments, without a shell." minItems:"1" maxItems:"1024" example:"[\"ls\",\"-l\"]"`
	TTY     bool     `json:"tty,omitempty" doc:"Give it a terminal; all output is then on channel 1."`
	Stdin   bool     `json:"stdin,omitempty" doc:"Give it an input; without it, its input is empty."`
	Cols    int      `json:"cols,omitempty" doc:"Columns of the terminal. Default 80." minimum:"1" maximum:"65535"`
	Rows    int      `json:"rows,omitempty" doc:"Rows of the terminal. Default 24." minimum:"1" maximum:"65535"`
	Term    string   `json:"term,omitempty" doc:"Kind of the terminal, the variable TERM." maxLength:"64" pattern:"^[A-Za-z0-9][A-Za-z0-9.+_-]*$" patternDescription:"letters, digits, '.', '+', '_' and '-', starting with a letter or digit" example:"xterm-256color"`
}

// ExecSize is a new size of the terminal.
type ExecSize struct {
	Cols int `json:"cols" doc:"Columns." minimum:"1" maximum:"65535"`
	Rows int `json:"rows" doc:"Rows." minimum:"1" maximum:"65535"`
}

// LogLine is the data of an event of a log, whose id orders the lines of a pod.
type LogLine struct {
	Source string `json:"source"` // container or system
	Line   string `json:"line"`
	At     Time   `json:"ts"`
}
