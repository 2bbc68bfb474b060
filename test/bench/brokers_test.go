package bench

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// brokerTry is how long one that starts may take to answer.
const brokerTry = 3 * time.Second

// broker is a queue of messages that others make, with synced writes, to compare with.
type broker struct {
	name string
	dial func() (brokerConn, error)
}

// brokerConn is one client's connection to a broker.
type brokerConn interface {
	// put has a message kept; take takes one and says that it is done.
	put(message string) error
	take() error
	SetDeadline(t time.Time) error
	Close() error
}

// newBrokers starts those that this machine has. beanstalkd knows no copies, and is there for one member only.
func newBrokers(b *testing.B, members int) (out []broker) {
	b.Helper()
	out = append(out, newNATS(b, members))
	if members > 1 {
		return out
	}
	program, err := exec.LookPath("beanstalkd")
	if err != nil {
		b.Log("beanstalkd is not installed: scripts/setup.sh bench installs it")
		return out
	}
	_, port, _ := net.SplitHostPort(freePort(b))
	spawn(b, program, "-l", "127.0.0.1", "-p", port, "-b", b.TempDir(), "-f", "0")
	one := broker{"beanstalkd", func() (brokerConn, error) { return dialBeanstalk(net.JoinHostPort("127.0.0.1", port)) }}
	one.await(b)
	return append(out, one)
}

// await waits until a message goes through.
func (one broker) await(b *testing.B) {
	b.Helper()
	until := time.Now().Add(apiLimit)
	for {
		err := one.try()
		if err == nil {
			return
		}
		if time.Now().After(until) {
			b.Fatalf("%s: %v", one.name, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (one broker) try() error {
	c, err := one.dial()
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	return errors.Join(c.SetDeadline(time.Now().Add(brokerTry)), c.put(jobInput), c.take())
}

// spawn runs a program until the benchmark ends. It dies with this process: the kernel ties that to the thread that starts it.
func spawn(b *testing.B, program string, args ...string) {
	b.Helper()
	cmd := exec.Command(program, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started, over := make(chan error, 1), make(chan struct{})
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(over)
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // it is killed
		}
	}()
	if err := <-started; err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-over
	})
}

// round puts and takes messages, and returns how many in a second.
func (one broker) round(b *testing.B, callers, n int) float64 {
	b.Helper()
	return one.each(b, callers, n, func(c brokerConn) error { return errors.Join(c.put(jobInput), c.take()) })
}

// publish puts messages, and returns how many in a second.
func (one broker) publish(b *testing.B, callers, n int) float64 {
	b.Helper()
	return one.each(b, callers, n, func(c brokerConn) error { return c.put(jobInput) })
}

func (one broker) each(b *testing.B, callers, n int, fn func(brokerConn) error) float64 {
	b.Helper()
	conns := make(chan brokerConn, callers)
	for range callers {
		c, err := one.dial()
		if err != nil {
			b.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		conns <- c
	}
	return many(b, callers, n, func(int) error {
		c := <-conns
		defer func() { conns <- c }()
		return fn(c)
	})
}

// lines is a connection with a protocol of lines.
type lines struct {
	net.Conn
	r *bufio.Reader
}

func dialLines(addr string) (lines, error) {
	c, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return lines{}, err
	}
	return lines{c, bufio.NewReader(c)}, c.SetDeadline(time.Now().Add(clusterLimit))
}

// say sends a request, and returns the words of the line that answers it.
func (l lines) say(request string) ([]string, error) {
	if _, err := io.WriteString(l, request); err != nil {
		return nil, err
	}
	line, err := l.r.ReadString('\n')
	return strings.Fields(line), err
}

// body reads what follows a line, with the end of its own.
func (l lines) body(size string) (string, error) {
	n, err := strconv.Atoi(size)
	if err != nil {
		return "", err
	}
	text := make([]byte, n+len("\r\n"))
	_, err = io.ReadFull(l.r, text)
	return string(text[:max(0, len(text)-len("\r\n"))]), err
}

type beanstalk struct{ lines }

func dialBeanstalk(addr string) (brokerConn, error) {
	l, err := dialLines(addr)
	return beanstalk{l}, err
}

func (c beanstalk) put(message string) error {
	words, err := c.say(fmt.Sprintf("put 0 0 60 %d\r\n%s\r\n", len(message), message))
	if err == nil && (len(words) != 2 || words[0] != "INSERTED") {
		err = fmt.Errorf("put: %v", words)
	}
	return err
}

func (c beanstalk) take() error {
	words, err := c.say("reserve-with-timeout 60\r\n")
	if err == nil && (len(words) != 3 || words[0] != "RESERVED") {
		err = fmt.Errorf("reserve: %v", words)
	}
	if err != nil {
		return err
	}
	if _, err := c.body(words[2]); err != nil {
		return err
	}
	words, err = c.say("delete " + words[1] + "\r\n")
	if err == nil && (len(words) != 1 || words[0] != "DELETED") {
		err = fmt.Errorf("delete: %v", words)
	}
	return err
}

// newNATS starts servers with JetStream that syncs every write, and a stream that each of them has.
func newNATS(b *testing.B, members int) broker {
	b.Helper()
	program, err := filepath.Abs("../../.bin/nats/nats-server")
	if err == nil {
		_, err = os.Stat(program)
	}
	if err != nil {
		b.Fatalf("make .bin/nats/.stamp builds it: %v", err)
	}
	var clients, routes []string
	for range members {
		clients, routes = append(clients, freePort(b)), append(routes, "nats://"+freePort(b))
	}
	for i, addr := range clients {
		dir := b.TempDir()
		text := fmt.Sprintf("server_name: s%d\nlisten: %q\njetstream { store_dir: %q, sync_interval: always }\n", i, addr, dir)
		if members > 1 {
			text += fmt.Sprintf("cluster { name: bench, listen: %q, routes: [%s] }\n", strings.TrimPrefix(routes[i], "nats://"), strings.Join(routes, ", "))
		}
		file := filepath.Join(dir, "nats.conf")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			b.Fatal(err)
		}
		spawn(b, program, "-c", file)
	}
	var mu sync.Mutex
	next := 0
	one := broker{"nats", func() (brokerConn, error) {
		mu.Lock()
		next++
		addr := clients[next%members]
		mu.Unlock()
		return dialNATS(addr)
	}}
	until := time.Now().Add(apiLimit)
	for err := errors.New("not yet"); err != nil; err = declare(one, members) {
		if time.Now().After(until) {
			b.Fatal(err)
		}
		time.Sleep(50 * time.Millisecond)
	}
	one.await(b)
	return one
}

// declare makes the stream and its consumer.
func declare(one broker, members int) error {
	c, err := one.dial()
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	n, _ := c.(*nats)
	if err := n.SetDeadline(time.Now().Add(brokerTry)); err != nil { // a server without a leader does not answer
		return err
	}
	_, _, err = n.request("$JS.API.STREAM.CREATE.jobs", fmt.Sprintf(
		`{"name":"jobs","subjects":["jobs"],"retention":"workqueue","storage":"file","num_replicas":%d}`, members))
	if err != nil {
		return err
	}
	_, _, err = n.request("$JS.API.CONSUMER.CREATE.jobs.workers", `{"stream_name":"jobs","action":"","config":{"durable_name":"workers","ack_policy":"explicit","max_ack_pending":100000}}`)
	return err
}

// nats is a connection that makes one request at a time.
type nats struct {
	lines
	inbox string
	asked int
}

func dialNATS(addr string) (brokerConn, error) {
	l, err := dialLines(addr)
	if err != nil {
		return nil, err
	}
	n := &nats{lines: l, inbox: "_INBOX." + strings.ReplaceAll(l.LocalAddr().String(), ".", "-")}
	if _, err = l.say(fmt.Sprintf("CONNECT {\"verbose\":false,\"headers\":true,\"no_responders\":true}\r\nSUB %s.* 1\r\nPING\r\n", n.inbox)); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return n, nil
}

// request sends a message, and returns the one that answers it.
func (n *nats) request(subject, message string) (reply, text string, err error) {
	n.asked++
	inbox := fmt.Sprintf("%s.%d", n.inbox, n.asked)
	if _, err := fmt.Fprintf(n, "PUB %s %s %d\r\n%s\r\n", subject, inbox, len(message), message); err != nil {
		return "", "", err
	}
	for {
		line, err := n.r.ReadString('\n')
		if err != nil {
			return "", "", err
		}
		words := strings.Fields(line)
		switch {
		case len(words) == 0, words[0] == "PONG", words[0] == "INFO":
		case words[0] == "PING":
			_, err = io.WriteString(n, "PONG\r\n")
		case words[0] == "-ERR":
			err = errors.New(line)
		case words[0] == "HMSG":
			_, _ = n.body(words[len(words)-1])
			err = fmt.Errorf("%s: nobody answers, or there is nothing", subject)
		case words[0] == "MSG":
			if text, err = n.body(words[len(words)-1]); err == nil && strings.Contains(text, `"error"`) {
				err = fmt.Errorf("%s: %s", subject, text)
			}
			if len(words) == 5 {
				reply = words[3]
			}
			return reply, text, err
		}
		if err != nil {
			return "", "", err
		}
	}
}

func (n *nats) put(message string) error {
	_, text, err := n.request("jobs", message)
	if err == nil && !json.Valid([]byte(text)) {
		err = errors.New(text)
	}
	return err
}

func (n *nats) take() error {
	reply, _, err := n.request("$JS.API.CONSUMER.MSG.NEXT.jobs.workers", `{"batch":1,"expires":60000000000}`)
	if err == nil {
		_, _, err = n.request(reply, "+ACK") // answered once it is kept
	}
	return err
}
