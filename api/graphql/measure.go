package graphql

import (
	"strings"

	"gantry/fleet"
)

// What a document may have. Real clients stay below a tenth of it; the standard introspection query is 13 deep.
const (
	maxDocument   = 128 << 10 // bytes
	maxDepth      = 20        // of selections in selections
	maxNesting    = 16        // of lists and objects in an argument
	maxFields     = 1000      // written down
	maxAliases    = 100
	maxFragments  = 50  // defined
	maxSpreads    = 200 // of fragments, named or not
	maxDirectives = 100
	maxOperations = 10
	maxVariables  = 400
	maxArguments  = 20000 // names and values in parentheses
	maxName       = 256   // bytes of a name or a number
)

// scanner reads a document once, byte by byte. It knows just enough of the grammar to count; what is wrong in other ways is the
// parser's to say.
type scanner struct {
	doc string
	at  int

	depth  int // of selections
	parens int // of arguments; lists and objects in them are not selections
	inner  int // of lists and objects in arguments

	fields, aliases, fragments, spreads, directives, operations, variables, arguments int

	out  strings.Builder // what came before from, where something was left out
	from int
}

// measure refuses a document that is too large in some way, in time that grows with its length alone, and returns it without
// those members of objects in arguments that are null: a null member is one that is left out, also where the schema has none
// of its name, with how many fields it writes down. Errors: CodeMalformed.
func measure(doc string) (measured string, fields int64, err error) {
	if len(doc) > maxDocument {
		return "", 0, refused("the document is larger than %d bytes: give long values as variables", maxDocument)
	}
	s := &scanner{doc: doc}
	for s.at < len(doc) {
		if err := s.step(); err != nil {
			return "", 0, err
		}
	}
	if s.from == 0 {
		return doc, int64(s.fields), nil
	}
	s.out.WriteString(doc[s.from:])
	return s.out.String(), int64(s.fields), nil
}

func refused(format string, args ...any) error {
	err := fleet.BreaksRule(format, args...).(*fleet.Error) //nolint:errorlint,forcetypeassert // it makes one
	err.Code = fleet.CodeMalformed
	return err
}

// step takes a token.
func (s *scanner) step() error {
	switch c := s.doc[s.at]; {
	case c == '#':
		if end := strings.IndexAny(s.doc[s.at:], "\n\r"); end >= 0 {
			s.at += end
		} else {
			s.at = len(s.doc)
		}
	case c == '"':
		return s.text()
	case nameByte(c):
		return s.name()
	case strings.HasPrefix(s.doc[s.at:], "..."):
		s.at += 3
		return over(&s.spreads, maxSpreads, "spreads of fragments")
	default:
		s.at++
		return s.mark(c)
	}
	return nil
}

// mark takes a character of punctuation.
func (s *scanner) mark(c byte) error {
	switch c {
	case '(':
		s.parens++
	case ')':
		s.parens, s.inner = max(0, s.parens-1), 0
	case '{', '[':
		if s.parens > 0 {
			return over(&s.inner, maxNesting, "levels of lists and objects in an argument")
		}
		if c == '{' {
			return over(&s.depth, maxDepth, "levels of selections")
		}
	case '}', ']':
		if s.parens > 0 {
			s.inner = max(0, s.inner-1)
		} else if c == '}' {
			s.depth = max(0, s.depth-1)
		}
	case '$':
		return over(&s.variables, maxVariables, "variables")
	case '@':
		return over(&s.directives, maxDirectives, "directives")
	case ':':
		if s.parens == 0 && s.depth > 0 {
			return over(&s.aliases, maxAliases, "aliases")
		}
	}
	return nil
}

// name takes a name, a keyword or a number.
func (s *scanner) name() error {
	start := s.at
	word := s.word()
	switch {
	case len(word) > maxName:
		return refused("a name or a number of the document has more than %d characters", maxName)
	case s.parens > 0:
		if s.inner > 0 {
			s.dropNull(start)
		}
		return over(&s.arguments, maxArguments, "names and values in arguments")
	case s.depth > 0:
		return over(&s.fields, maxFields, "fields")
	case word == "fragment":
		return over(&s.fragments, maxFragments, "fragments")
	case word == "query" || word == "mutation" || word == "subscription":
		return over(&s.operations, maxOperations, "operations")
	}
	return nil
}

func (s *scanner) word() string {
	start := s.at
	for s.at < len(s.doc) && nameByte(s.doc[s.at]) {
		s.at++
	}
	return s.doc[start:s.at]
}

// dropNull leaves out the member of an object whose name begins at start, if it is null.
func (s *scanner) dropNull(start int) {
	back := s.at
	s.space()
	if s.at < len(s.doc) && s.doc[s.at] == ':' {
		s.at++
		s.space()
		if s.word() == "null" {
			s.out.WriteString(s.doc[s.from:start])
			s.from = s.at
			return
		}
	}
	s.at = back
}

func (s *scanner) space() {
	for s.at < len(s.doc) && strings.IndexByte(" \t\r\n,", s.doc[s.at]) >= 0 {
		s.at++
	}
}

// text takes a string. Its escapes must be those that the parser knows: neither \/ nor halves of characters.
func (s *scanner) text() error {
	if strings.HasPrefix(s.doc[s.at:], `"""`) {
		return refused("the document has a block string: give the text as a variable")
	}
	for s.at++; s.at < len(s.doc); s.at++ {
		switch s.doc[s.at] {
		case '\\':
			s.at++
			if s.at == len(s.doc) || strings.IndexByte(`"\bfnrtu`, s.doc[s.at]) < 0 || surrogate(s.doc[s.at:]) {
				return refused("a string of the document has an escape that is not read: give the text as a variable")
			}
		case '"':
			s.at++
			return over(&s.arguments, maxArguments, "names and values in arguments")
		}
	}
	return nil
}

// surrogate reports whether an escape is half of a character, as in \ud83d.
func surrogate(escape string) bool {
	return len(escape) > 2 && escape[0] == 'u' && escape[1]|0x20 == 'd' && strings.IndexByte("89abAB"+"cdefCDEF", escape[2]) >= 0
}

func nameByte(c byte) bool {
	return c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

// over counts one more of what there may be most of.
func over(n *int, most int, what string) error {
	if *n++; *n > most {
		return refused("the document has more than %d %s", most, what)
	}
	return nil
}
