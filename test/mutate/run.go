package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
)

// runner tries the mutants of packages.
type runner struct {
	sample   int
	seed     int64
	file     string
	parallel int
	list     bool     // say which mutants no test reaches, and try none
	also     []string // other packages, whose tests meet the survivors
}

// score is what became of a package's mutants.
type score struct {
	pkg       string
	all       int // of the package
	tried     int
	unmet     int // pass on an error that no test provokes
	killed    int // by the package's own tests
	elsewhere int // by the tests of other packages alone
	survivors []string
	leftOut   []string // tests that fail with all mutants off, and are not asked
}

// percent is how many of the mutants were killed, but for those that pass on an error that no test of the package provokes.
func (s score) percent() float64 { return s.share(s.killed + s.elsewhere) }

func (s score) share(killed int) float64 {
	if s.tried == s.unmet {
		return 100
	}
	return 100 * float64(killed) / float64(s.tried-s.unmet)
}

func (s score) String() string {
	out := fmt.Sprintf("%s: %d mutants, %d tried, %d pass on errors that no test provokes, %d of the others killed (%.1f %%)",
		s.pkg, s.all, s.tried, s.unmet, s.killed, s.share(s.killed))
	if s.elsewhere > 0 {
		out += fmt.Sprintf("; with %d more that only tests of other packages kill: %.1f %%", s.elsewhere, s.percent())
	}
	for _, name := range s.leftOut {
		out += "\n  left out: " + name
	}
	for _, m := range s.survivors {
		out += "\n  survived: " + m
	}
	return out
}

// pack is a package that is measured.
type pack struct {
	Dir        string
	Name       string
	ImportPath string
	GoFiles    []string

	binary  string
	scratch string
	mutants []mutant
	tests   []test           // the quickest first
	reached map[int][]string // by mutant: the names of the tests, the quickest first
	leftOut []string         // tests that fail with all mutants off
}

// test is a test of the package and how long it takes.
type test struct {
	name string
	took time.Duration
}

// measure tries the mutants of one package.
func (r *runner) measure(ctx context.Context, path string) (score, error) {
	scratch, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return score{}, err
	}
	defer os.RemoveAll(scratch)
	p, err := find(ctx, path, scratch, "package.test")
	if err != nil {
		return score{}, err
	}
	if err := p.instrument(); err != nil {
		return score{}, err
	}
	if err := p.compile(ctx); err != nil {
		return score{}, err
	}
	if r.list {
		return r.unreached(ctx, p)
	}
	if err := p.record(ctx); err != nil {
		return score{}, err
	}
	return r.try(ctx, p)
}

// find asks where a package is.
func find(ctx context.Context, path, scratch, binary string) (*pack, error) {
	p := &pack{scratch: scratch, binary: filepath.Join(scratch, binary), reached: map[int][]string{}}
	list, err := exec.CommandContext(ctx, "go", "list", "-json=Dir,Name,ImportPath,GoFiles", path).Output()
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", path, err)
	}
	return p, json.Unmarshal(list, p)
}

// instrument writes the package's source with all mutants in it, to be laid over that of the source tree.
func (p *pack) instrument() error {
	replace := map[string]string{}
	put := func(name, text string) error {
		path := filepath.Join(p.scratch, name)
		replace[filepath.Join(p.Dir, name)] = path
		return os.WriteFile(path, []byte(text), 0o600)
	}
	for _, name := range p.GoFiles {
		if strings.HasSuffix(name, ".pb.go") {
			continue
		}
		src, err := os.ReadFile(filepath.Join(p.Dir, name))
		if err != nil {
			return err
		}
		text, found, err := instrument(name, src, len(p.mutants))
		if err != nil {
			return err
		}
		p.mutants = append(p.mutants, found...)
		if err := put(name, text); err != nil {
			return err
		}
	}
	if err := put("mutate_switches.go", fmt.Sprintf(switches, p.Name, len(p.mutants))); err != nil {
		return err
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(p.scratch, "overlay.json"), overlay, 0o600)
}

// compile compiles the tests with all mutants in them.
func (p *pack) compile(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-overlay", filepath.Join(p.scratch, "overlay.json"),
		"-o", p.binary, p.ImportPath)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build with mutants: %w\n%s", err, out)
	}
	return nil
}

// limit is how long one test may take beyond a multiple of what it took without a mutant.
const limit = 10 * time.Second

// readOnly runs a command in mount namespace of its own where only temporary files can be written, so that a mutant
// that forgets a check harms no file.
const readOnly = `mount --make-rprivate / && mount --bind /tmp /tmp && mount -o bind,remount,ro / && exec "$@"`

// run runs tests of the package and reports whether all passed.
func (p *pack) run(ctx context.Context, within time.Duration, pattern string, env ...string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	temp, err := os.MkdirTemp("/tmp", "mutant")
	if err != nil {
		return false, err
	}
	defer os.RemoveAll(temp)
	if err := os.Chmod(temp, 0o711); err != nil { //nolint:gosec // tests run programs of other users below it
		return false, err
	}
	cmd := exec.CommandContext(ctx, "unshare", "-m", "--propagation", "unchanged", "sh", "-c", readOnly, "sh",
		p.binary, "-test.run", pattern, "-test.failfast", "-test.timeout", within.String())
	cmd.Dir = p.Dir
	cmd.Env = append(os.Environ(), append(env, "TMPDIR="+temp)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	out := bytes.Buffer{}
	cmd.Stdout, cmd.Stderr = &out, &out
	err = cmd.Run()
	if cmd.Process == nil {
		return false, fmt.Errorf("start tests: %w", err)
	}
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // what the tests left running
	if err != nil && len(env) > 0 && strings.HasPrefix(env[0], "GANTRY_MUTANT_LIST=") {
		return false, fmt.Errorf("without a mutant: %w\n%s", err, out.Bytes())
	}
	return err == nil, nil
}

// record runs each test by itself, to learn how long it takes and what it reaches.
func (p *pack) record(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, p.binary, "-test.list", "^(Test|Fuzz)")
	cmd.Dir = p.Dir
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("list tests: %w", err)
	}
	for _, name := range strings.Fields(string(out)) {
		p.tests = append(p.tests, test{name: name})
	}
	reached := map[string][]int{}
	for i := range p.tests {
		t := &p.tests[i]
		path := filepath.Join("/tmp", fmt.Sprintf("mutate-%d-%s", os.Getpid(), t.name))
		began := time.Now()
		ok, err := p.run(ctx, 5*time.Minute, "^"+t.name+"$", "GANTRY_MUTANT_LIST="+path)
		t.took = time.Since(began)
		text, _ := os.ReadFile(path) // a test may reach nothing
		_ = os.Remove(path)
		if err != nil || !ok {
			p.leftOut = append(p.leftOut, t.name)
			fmt.Fprintf(os.Stderr, "%s fails with all mutants off: %v\n", t.name, err)
			continue
		}
		for _, n := range strings.Fields(string(text)) {
			if k, err := strconv.Atoi(n); err == nil {
				reached[t.name] = append(reached[t.name], k)
			}
		}
	}
	slices.SortFunc(p.tests, func(a, b test) int { return int(a.took - b.took) })
	for _, t := range p.tests {
		for _, n := range reached[t.name] {
			p.reached[n] = append(p.reached[n], t.name)
		}
	}
	return nil
}

// unreached runs all tests once and takes those mutants for survivors that none of them reaches.
func (r *runner) unreached(ctx context.Context, p *pack) (score, error) {
	path := filepath.Join("/tmp", fmt.Sprintf("mutate-%d", os.Getpid()))
	defer os.Remove(path)
	if _, err := p.run(ctx, 10*time.Minute, ".", "GANTRY_MUTANT_LIST="+path); err != nil {
		return score{}, err
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return score{}, fmt.Errorf("no test reaches any mutant: %w", err)
	}
	reached := strings.Fields(string(text))
	s := score{pkg: p.ImportPath, all: len(p.mutants)}
	for _, n := range r.chosen(p) {
		s.tried++
		switch m := p.mutants[n]; {
		case slices.Contains(reached, strconv.Itoa(n)):
			s.killed++
		case m.passes:
			s.unmet++
		default:
			s.survivors = append(s.survivors, m.String())
		}
	}
	return s, nil
}

// chosen returns the numbers of the mutants of the files that are asked for.
func (r *runner) chosen(p *pack) (chosen []int) {
	for n, m := range p.mutants {
		if r.file == "" || m.file == r.file {
			chosen = append(chosen, n)
		}
	}
	return chosen
}

// try tries the mutants that were chosen.
func (r *runner) try(ctx context.Context, p *pack) (score, error) {
	chosen := r.chosen(p)
	s := score{pkg: p.ImportPath, all: len(p.mutants), leftOut: p.leftOut}
	if r.sample > 0 && r.sample < len(chosen) {
		random := rand.New(rand.NewPCG(uint64(r.seed), 0)) //nolint:gosec // a sample, no secret
		random.Shuffle(len(chosen), func(i, j int) { chosen[i], chosen[j] = chosen[j], chosen[i] })
		chosen = chosen[:r.sample]
		slices.Sort(chosen)
	}
	s.tried = len(chosen)
	chosen = slices.DeleteFunc(chosen, func(n int) bool { return p.mutants[n].passes && len(p.reached[n]) == 0 })
	s.unmet = s.tried - len(chosen)
	left, err := r.survivors(ctx, p, chosen)
	if err != nil {
		return s, err
	}
	s.killed = len(chosen) - len(left)
	own := len(left)
	for i, path := range r.also {
		if len(left) == 0 {
			break
		}
		other, err := find(ctx, path, p.scratch, fmt.Sprintf("also%d.test", i))
		if err != nil {
			return s, err
		}
		other.mutants = p.mutants
		err = other.compile(ctx)
		if err == nil {
			err = other.record(ctx)
		}
		if err != nil {
			return s, fmt.Errorf("%s: %w", path, err)
		}
		for _, name := range other.leftOut {
			s.leftOut = append(s.leftOut, path+" "+name)
		}
		if left, err = r.survivors(ctx, other, left); err != nil {
			return s, err
		}
	}
	s.elsewhere = own - len(left)
	for _, n := range left {
		s.survivors = append(s.survivors, fmt.Sprintf("%s (%d tests reach it)", p.mutants[n], len(p.reached[n])))
	}
	return s, nil
}

// survivors tries mutants against the tests of a package and returns those that no test noticed.
func (r *runner) survivors(ctx context.Context, p *pack, chosen []int) ([]int, error) {
	killed := make([]bool, len(chosen))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(r.parallel)
	for i, n := range chosen {
		group.Go(func() (err error) {
			killed[i], err = p.kill(ctx, n)
			if !killed[i] {
				fmt.Fprintf(os.Stderr, "survived %s, of %d: %s (%d tests reach it)\n", p.ImportPath, len(chosen), p.mutants[n],
					len(p.reached[n]))
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	var left []int
	for i, n := range chosen {
		if !killed[i] {
			left = append(left, n)
		}
	}
	return left, nil
}

// kill reports whether a test fails while a mutant is on. The tests are tried a few at a time, so that a mutant that a
// quick test finds costs no more than that.
func (p *pack) kill(ctx context.Context, n int) (bool, error) {
	took := map[string]time.Duration{}
	for _, t := range p.tests {
		took[t.name] = t.took
	}
	names := p.reached[n]
	for size := 4; len(names) > 0; size *= 4 {
		some := names[:min(size, len(names))]
		names = names[len(some):]
		var sum time.Duration
		for _, name := range some {
			sum += took[name]
		}
		ok, err := p.run(ctx, limit+5*sum, "^("+strings.Join(some, "|")+")$", "GANTRY_MUTANT="+strconv.Itoa(n))
		if err != nil {
			return false, err
		}
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
		if !ok {
			return true, nil
		}
	}
	return false, nil
}
