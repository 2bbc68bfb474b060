package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"slices"
	"strings"
)

// mutant is one fault. Its number is its place in the list of its package.
type mutant struct {
	file string // base name
	line int
	text string // what the fault is
	// passes is set where an error that another call gave is only passed on.
	passes bool
}

func (m mutant) String() string { return fmt.Sprintf("%s:%d: %s", m.file, m.line, m.text) }

// switches is the file that is added to a package: with GANTRY_MUTANT set to a number, that mutant is on; with
// GANTRY_MUTANT_LIST set to a path, the number of each mutant that is reached is appended to that file, once.
const switches = `package %s

import (
	mutateOS "os"
	mutateConv "strconv"
	mutateAtomic "sync/atomic"
)

var (
	mutateNow, mutateSet = mutateEnv()
	mutateList           = mutateOS.Getenv("GANTRY_MUTANT_LIST")
	mutateSeen           [%d]mutateAtomic.Bool
)

func mutateEnv() (int, bool) {
	n, err := mutateConv.Atoi(mutateOS.Getenv("GANTRY_MUTANT"))
	return n, err == nil
}

func mutateOn(n int) bool {
	if mutateList == "" {
		return mutateSet && n == mutateNow
	}
	if !mutateSeen[n].Swap(true) {
		if f, err := mutateOS.OpenFile(mutateList, mutateOS.O_WRONLY|mutateOS.O_APPEND|mutateOS.O_CREATE, 0o666); err == nil {
			f.WriteString(mutateConv.Itoa(n) + "\n")
			f.Close()
		}
	}
	return false
}

// mutateBound is a comparison whose bound is moved; a test reaches it where that makes a difference.
func mutateBound(n int, is, moved bool) bool {
	return is != (is != moved && mutateOn(n))
}

func mutateErr(n int, err error) error {
	if err != nil && mutateOn(n) {
		return nil
	}
	return err
}
`

// insertion puts text before the byte at an offset of a file.
type insertion struct {
	at   int
	text string
	wrap int // among insertions at one place: opening ones outermost first, closing ones innermost first
}

// mutator finds the mutants of one file.
type mutator struct {
	fset    *token.FileSet
	src     []byte
	name    string
	first   int // number of the next mutant
	found   []mutant
	inserts []insertion
	results []*ast.FieldList // of the functions around the node, innermost last
}

// instrument returns the file's source with switches for all of its mutants, which are numbered from first on.
func instrument(name string, src []byte, first int) (string, []mutant, error) {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, name, src, parser.SkipObjectResolution|parser.ParseComments)
	if err != nil {
		return "", nil, err
	}
	m := &mutator{fset: fset, src: src, name: name, first: first}
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Body != nil {
			m.function(f.Type, f.Body)
		}
	}
	return m.rewrite(), m.found, nil
}

// function mutates a function's body; functions in it have results of their own.
func (m *mutator) function(kind *ast.FuncType, body *ast.BlockStmt) {
	m.results = append(m.results, kind.Results)
	defer func() { m.results = m.results[:len(m.results)-1] }()
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			m.function(n.Type, n.Body)
			return false
		case *ast.IfStmt:
			m.condition(n.Cond, true)
		case *ast.SwitchStmt:
			if n.Tag == nil {
				m.cases(n.Body)
			}
		case *ast.ReturnStmt:
			m.returned(n)
		case *ast.BlockStmt:
			m.statements(n.List)
		case *ast.CaseClause:
			m.statements(n.Body)
		case *ast.CommClause:
			m.statements(n.Body)
		}
		return true
	})
}

func (m *mutator) cases(body *ast.BlockStmt) {
	for _, s := range body.List {
		for _, e := range s.(*ast.CaseClause).List {
			m.condition(e, false)
		}
	}
}

// condition mutates each part of a condition; the whole of an if that has no parts is also taken to hold.
func (m *mutator) condition(e ast.Expr, whole bool) {
	if m.part(e, false) && whole {
		m.leaf(e, true)
	}
}

// part takes a part of which all must hold to hold, and any other not to. It reports whether e has no parts.
func (m *mutator) part(e ast.Expr, all bool) bool {
	e = ast.Unparen(e)
	if x, ok := e.(*ast.BinaryExpr); ok && (x.Op == token.LAND || x.Op == token.LOR) {
		m.part(x.X, x.Op == token.LAND)
		m.part(x.Y, x.Op == token.LAND)
		return false
	}
	m.leaf(e, all)
	return true
}

// leaf takes a condition to hold, or not to. A comparison of order is also tried with its bound moved.
func (m *mutator) leaf(e ast.Expr, hold bool) {
	if id, ok := e.(*ast.Ident); ok && (id.Name == "true" || id.Name == "false") {
		return
	}
	if hold {
		n := m.add(e, "%s: taken to hold", asked.MatchString(m.text(e)))
		m.wrap(e, "((", fmt.Sprintf(") || mutateOn(%d))", n))
	} else {
		n := m.add(e, "%s: taken not to hold", asked.MatchString(m.text(e)))
		m.wrap(e, "((", fmt.Sprintf(") && !mutateOn(%d))", n))
	}
	other := map[token.Token]string{token.LSS: "<=", token.LEQ: "<", token.GTR: ">=", token.GEQ: ">"}
	if x, ok := e.(*ast.BinaryExpr); ok && other[x.Op] != "" && !hold {
		n := m.add(e, "%s: "+other[x.Op], false)
		moved := m.text(x.X) + " " + other[x.Op] + " " + m.text(x.Y)
		if strings.Contains(moved, "\n") || strings.Contains(moved, "func(") {
			m.found = m.found[:len(m.found)-1]
			return
		}
		if calls(x) {
			m.wrap(e, fmt.Sprintf("(mutateOn(%d) && (%s) || !mutateOn(%d) && (", n, moved, n), "))")
		} else {
			m.wrap(e, fmt.Sprintf("mutateBound(%d, ", n), ", "+moved+")")
		}
	}
}

// calls reports whether an expression calls anything but len, and so may differ when it is evaluated twice.
func calls(e ast.Expr) (found bool) {
	ast.Inspect(e, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok {
			id, ok := call.Fun.(*ast.Ident)
			found = found || !ok || id.Name != "len"
		}
		return true
	})
	return found
}

// returned takes an error that is returned away.
func (m *mutator) returned(r *ast.ReturnStmt) {
	list := m.results[len(m.results)-1]
	if list == nil || len(list.List) == 0 || len(r.Results) == 0 {
		return
	}
	kind, ok := list.List[len(list.List)-1].Type.(*ast.Ident)
	last := r.Results[len(r.Results)-1]
	if !ok || kind.Name != "error" || len(r.Results) != list.NumFields() {
		return
	}
	if id, ok := last.(*ast.Ident); ok && id.Name == "nil" {
		return
	}
	text := m.text(last)
	_, call := last.(*ast.CallExpr)
	n := m.add(last, "returned error %s: nil", asked.MatchString(text) || call && !made.MatchString(text))
	m.wrap(last, fmt.Sprintf("mutateErr(%d, ", n), ")")
}

// unheard matches calls that no test is asked to notice: logs, metrics, locks.
var unheard = regexp.MustCompile(`(?i)(^|\.)(log|slog|metrics|faultpoint)\.|\.(Lock|Unlock|RLock|RUnlock|Inc|Dec|Add|Observe)\($|\.(Debug|Info|Warn|Error)\($|^(panic|close)\($`)

var (
	// asked matches a question whether there is an error, and an error that is only passed on.
	asked = regexp.MustCompile(`^err( [!=]= nil)?$|^fmt\.Errorf\(.*\b[eE]rr\)$`)
	// made matches an error that is made where it is returned.
	made = regexp.MustCompile(`^(fmt\.Errorf|errors\.New|status\.Errorf?|fleet\.[A-Z]\w*)\(`)
)

// statements leaves each call out that stands as a statement in a list.
func (m *mutator) statements(list []ast.Stmt) {
	for _, s := range list {
		e, ok := s.(*ast.ExprStmt)
		if !ok {
			continue
		}
		call, ok := e.X.(*ast.CallExpr)
		if !ok || unheard.MatchString(m.text(call.Fun)+"(") {
			continue
		}
		n := m.add(s, "%s: left out", false)
		m.wrap(s, fmt.Sprintf("if !mutateOn(%d) { ", n), " }")
	}
}

// add notes a mutant and returns its number.
func (m *mutator) add(n ast.Node, format string, passes bool) int {
	text := strings.Join(strings.Fields(m.text(n)), " ")
	if len(text) > 90 {
		text = text[:90] + "…"
	}
	m.found = append(m.found, mutant{
		file: m.name, line: m.fset.Position(n.Pos()).Line, text: fmt.Sprintf(format, text), passes: passes,
	})
	return m.first + len(m.found) - 1
}

func (m *mutator) text(n ast.Node) string {
	return string(m.src[m.fset.Position(n.Pos()).Offset:m.fset.Position(n.End()).Offset])
}

// wrap puts text around a node. What is wrapped later lies outside of what was wrapped at the same place before.
func (m *mutator) wrap(n ast.Node, before, after string) {
	k := len(m.inserts)
	m.inserts = append(m.inserts,
		insertion{m.fset.Position(n.Pos()).Offset, before, -k}, insertion{m.fset.Position(n.End()).Offset, after, k})
}

// rewrite returns the source with everything inserted.
func (m *mutator) rewrite() string {
	// Closing text of an inner node comes before that of an outer one, which ends at the same place or later;
	// opening text the other way round. Nothing opens where something else closes.
	slices.SortStableFunc(m.inserts, func(a, b insertion) int {
		if a.at != b.at {
			return a.at - b.at
		}
		return a.wrap - b.wrap
	})
	var out strings.Builder
	at := 0
	for _, i := range m.inserts {
		out.Write(m.src[at:i.at])
		out.WriteString(i.text)
		at = i.at
	}
	out.Write(m.src[at:])
	return out.String()
}
