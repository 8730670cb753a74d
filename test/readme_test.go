package test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/tokenring/tokenring/test/harness"
	"github.com/tokenring/tokenring/test/wait"
)

// The local cluster that `make run` starts gives what the README says, line by line.
func TestReadmeSession(t *testing.T) {
	commands := readmeSession(t)
	if len(commands) < 5 {
		t.Fatalf("the README's session has %d commands", len(commands))
	}
	ports := startLocalCluster(t)
	for _, c := range commands {
		got := ports.shell(t, c.line)
		if want := normalize(c.output); normalize(got) != want {
			t.Errorf("$ %s\n%s\nwant, as the README says,\n%s", c.line, normalize(got), want)
		}
	}
}

type command struct{ line, output string }

// readmeSession reads the first console block of the README.
func readmeSession(t *testing.T) []command {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "```console\n")
	block, _, _ := strings.Cut(rest, "```")
	var commands []command
	for line := range strings.Lines(block) {
		if typed, ok := strings.CutPrefix(line, "$ "); ok {
			commands = append(commands, command{line: strings.TrimSpace(typed)})
		} else if len(commands) > 0 {
			commands[len(commands)-1].output += line
		}
	}
	return commands
}

// times are what differs between two runs of the session.
var times = regexp.MustCompile(`("re(?:try|set)_after_ms"):\d+`)

func normalize(output string) string {
	var lines []string
	for line := range strings.Lines(times.ReplaceAllString(output, "$1:N")) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	return strings.Join(lines, "\n")
}

// localPorts maps the ports of the README to those of a test's own cluster.
type localPorts struct{ http, gossip int }

var (
	httpPorts   = regexp.MustCompile(`127\.0\.0\.1:8(0[89]|10)\d`)
	gossipPorts = regexp.MustCompile(`127\.0\.0\.1:\d{5}`)
)

// shell runs a command of the README against the test's own cluster, and returns what it
// printed with the README's ports.
func (p localPorts) shell(t *testing.T, line string) string {
	t.Helper()
	line = httpPorts.ReplaceAllStringFunc(line, func(addr string) string { return p.move(addr, 8080, p.http) })
	line = strings.Replace(line, "bin/tokenring members", fmt.Sprintf("%s members --admin 127.0.0.1:%d", harness.Binary(t), p.http+2), 1)
	out, err := exec.CommandContext(inTime(t), "bash", "-c", line).CombinedOutput()
	if err != nil {
		t.Errorf("$ %s\n%s%v", line, out, err)
	}
	return gossipPorts.ReplaceAllStringFunc(string(out), func(addr string) string { return p.move(addr, p.gossip, 7946) })
}

func (p localPorts) move(addr string, from, to int) string {
	host, port, _ := net.SplitHostPort(addr)
	number, _ := strconv.Atoi(port)
	return net.JoinHostPort(host, strconv.Itoa(number-from+to))
}

// startLocalCluster runs `tokenring cluster` until the end of the test, and makes sure
// that it then ends well.
func startLocalCluster(t *testing.T) localPorts {
	t.Helper()
	p := localPorts{http: harness.FreePorts(t, 30), gossip: harness.FreePorts(t, 30)}
	ctx, stop := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, harness.Binary(t), "cluster", "--nodes", "3",
		"--base-port", strconv.Itoa(p.http), "--gossip-base-port", strconv.Itoa(p.gossip))
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = harness.Slow
	var out buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stop()
		if err := cmd.Wait(); err != nil && cmd.ProcessState.ExitCode() != 0 {
			t.Errorf("the local cluster ended with %v", err)
		}
		if t.Failed() {
			t.Logf("it printed:\n%s", out.String())
		}
	})
	wait.For(t, harness.Slow, "the local cluster to be ready", func() bool {
		return strings.Contains(out.String(), "3 nodes are ready")
	})
	return p
}

// buffer is written by a process while the test reads it.
type buffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}
