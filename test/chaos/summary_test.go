package chaos

import (
	"bufio"
	"errors"
	"io"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const (
	summaryLines = 20  // of one test
	summaryWidth = 400 // bytes of one line
)

// summary keeps what failed tests said, to be repeated after everything else: who keeps only the end of a long output
// sees it.
type summary struct {
	test   string              // whose lines come now
	said   map[string][]string // by test, when lines come before the verdict: go test -v
	failed []string
	after  int // lines that may still come of a failed test, when they come after the verdict
}

var (
	begins  = regexp.MustCompile(`^=== (?:RUN|NAME|CONT)\s+(\S+)`)
	verdict = regexp.MustCompile(`^\s*--- (FAIL|PASS|SKIP): (\S+)`)
	saying  = regexp.MustCompile(`^\s+\w+_test\.go:\d+: `)
	logsSay = regexp.MustCompile(`^\s+main_test\.go:\d+: --- `) // the daemons' logs
)

// line takes the next line of the tests' output.
func (s *summary) line(text string) {
	text = strings.TrimLeft(strings.TrimRight(text, "\r\n"), "\x16") // the mark of go test -json
	if found := begins.FindStringSubmatch(text); found != nil {
		s.test, s.after = found[1], 0
		return
	}
	if found := verdict.FindStringSubmatch(text); found != nil {
		s.after = 0
		if said := s.said[found[2]]; found[1] == "FAIL" {
			s.failed, s.after = append(append(s.failed, text), said...), summaryLines
		}
		return
	}
	if !saying.MatchString(text) || logsSay.MatchString(text) {
		return
	}
	text = text[:min(len(text), summaryWidth)]
	switch {
	case s.after > 0:
		s.failed, s.after = append(s.failed, text), s.after-1
	case s.test != "" && len(s.said[s.test]) < summaryLines:
		s.said[s.test] = append(s.said[s.test], text)
	}
}

// summarize runs tests whose standard output it passes on, and returns the lines of those that failed.
func summarize(tests func() int) (code int, failed []string, err error) {
	in, out, err := os.Pipe()
	if err != nil {
		return 0, nil, err
	}
	real := os.Stdout
	os.Stdout = out
	s := &summary{said: map[string][]string{}}
	read := make(chan error, 1)
	go func() {
		lines := bufio.NewReader(io.TeeReader(in, real))
		for {
			text, err := lines.ReadString('\n')
			if s.line(text); err != nil {
				read <- err
				return
			}
		}
	}()
	code = tests()
	os.Stdout = real
	if err = errors.Join(out.Close(), <-read, in.Close()); errors.Is(err, io.EOF) {
		err = nil
	}
	return code, s.failed, err
}

func TestSummary(t *testing.T) {
	for name, output := range map[string]string{
		"Plain": "--- FAIL: TestA (1.00s)\n    a_test.go:1: it is wrong\n        and more of it\n    main_test.go:110: --- main-s1\n        {\"level\":\"WARN\"}\n" +
			"    --- FAIL: TestA/Sub (0.10s)\n        a_test.go:2: so is this\nFAIL\n",
		"Verbose": "=== RUN   TestOther\n    a_test.go:3: all is well\n--- PASS: TestOther (0.00s)\n" +
			"=== RUN   TestA\n    a_test.go:1: it is wrong\n=== RUN   TestA/Sub\n        a_test.go:2: so is this\n=== NAME  TestA\n    main_test.go:110: --- main-s1\n" +
			"        {\"level\":\"WARN\"}\n--- FAIL: TestA (1.00s)\n    --- FAIL: TestA/Sub (0.10s)\nFAIL\n",
	} {
		t.Run(name, func(t *testing.T) {
			s := &summary{said: map[string][]string{}}
			for text := range strings.Lines(output) {
				s.line(text)
			}
			want := []string{"--- FAIL: TestA (1.00s)", "    a_test.go:1: it is wrong", "    --- FAIL: TestA/Sub (0.10s)", "        a_test.go:2: so is this"}
			if diff := cmp.Diff(want, s.failed); diff != "" {
				t.Error(diff)
			}
		})
	}
}
