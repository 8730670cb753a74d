// Package harness runs real nodes for tests: processes of `tokenring serve` on free
// loopback ports, each with all the others as seeds, which a test may kill, stop, let
// leave and start again. It waits for conditions and never for a time.
package harness

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tokenring/tokenring/test/wait"
)

// Slow is how long a test waits for something that should happen soon: what takes longer
// on the slowest machine is broken.
const Slow = 30 * time.Second

// binary builds the program once for all tests of a process.
var binary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "tokenring-test-")
	if err != nil {
		return "", err
	}
	root, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return "", fmt.Errorf("find the module: %w", err)
	}
	path := filepath.Join(dir, "tokenring")
	build := exec.Command("go", "build", "-o", path, "./cmd/tokenring")
	build.Dir = strings.TrimSpace(string(root))
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build tokenring: %w\n%s", err, out)
	}
	return path, nil
})

// Main runs the tests of a package and removes the program that was built for them.
func Main(m *testing.M) {
	code := m.Run()
	if path, err := binary(); err == nil {
		_ = os.RemoveAll(filepath.Dir(path)) // a leftover below the temporary folder at worst
	}
	os.Exit(code)
}

// Binary returns the path of the program, built from the tree under test.
func Binary(tb testing.TB) string {
	tb.Helper()
	path, err := binary()
	if err != nil {
		tb.Fatal(err)
	}
	return path
}

// Config says what a cluster is made of.
type Config struct {
	Nodes int      // how many
	Flags []string // of every node
	// Limits is the text of a limits file for every node; "" is none.
	Limits string
	// Hosts gives each node a network namespace of its own; see NeedHosts.
	Hosts bool
	// Relayed puts a Relay before the peer port of each node.
	Relayed bool
}

// Cluster is a set of nodes that know each other.
type Cluster struct {
	tb     testing.TB
	config Config
	dir    string
	bridge string // of the hosts, "" if all nodes are on loopback

	mu    sync.Mutex
	nodes []*Node
}

// New returns a cluster whose nodes do not run yet. They end with the test, and if it has
// failed then what they logged is shown.
func New(tb testing.TB, c Config) *Cluster {
	tb.Helper()
	Binary(tb)
	cl := &Cluster{tb: tb, config: c, dir: tb.TempDir()}
	if c.Limits != "" {
		path := filepath.Join(cl.dir, "limits.yaml")
		if err := os.WriteFile(path, []byte(c.Limits), 0o600); err != nil {
			tb.Fatal(err)
		}
		cl.config.Flags = append([]string{"--limits", path}, c.Flags...)
	}
	if c.Hosts {
		cl.bridge = network(tb)
	}
	for range c.Nodes {
		cl.Add()
	}
	tb.Cleanup(func() {
		for _, n := range cl.Nodes() {
			n.end()
			if tb.Failed() {
				tb.Logf("%s logged:\n%s", n.ID, n.Log())
			}
		}
	})
	return cl
}

// Start returns a cluster of running nodes that are all ready.
func Start(tb testing.TB, c Config) *Cluster {
	tb.Helper()
	cl := New(tb, c)
	for _, n := range cl.Nodes() {
		n.Start()
	}
	cl.WaitReady()
	return cl
}

// Nodes returns all nodes, in the order they were added.
func (c *Cluster) Nodes() []*Node {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.nodes)
}

// Add puts another node into the cluster, which does not run yet. Nodes that are started
// later have it as a seed.
func (c *Cluster) Add() *Node {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := &Node{tb: c.tb, cluster: c, ID: fmt.Sprintf("node-%d", len(c.nodes)+1)}
	for _, addr := range []*string{&n.HTTP, &n.GRPC, &n.Admin, &n.Gossip, &n.Peer} {
		*addr = freeAddr(c.tb)
	}
	if c.bridge != "" {
		n.moveTo(addHost(c.tb, c.bridge, len(c.nodes)+1))
	}
	if c.config.Relayed {
		n.Relay = startRelay(c.tb, n.Peer)
		n.Gossip = strings.Replace(n.Gossip, "127.0.0.1", relayHost, 1)
	}
	c.nodes = append(c.nodes, n)
	return n
}

// WaitReady waits until every running node is ready and lists exactly the running ones as
// active.
func (c *Cluster) WaitReady() {
	c.tb.Helper()
	wait.For(c.tb, Slow, "all nodes to be ready and to know each other", func() bool {
		var running []string
		for _, n := range c.Nodes() {
			if n.Running() {
				running = append(running, n.ID)
			}
		}
		slices.Sort(running) // node-10 is listed before node-2
		for _, n := range c.Nodes() {
			if n.Running() && (!n.Ready() || !slices.Equal(n.Active(), running)) {
				return false
			}
		}
		return len(running) > 0
	})
}

// Node is one process, or the place where one ran and may run again.
type Node struct {
	tb      testing.TB
	cluster *Cluster

	ID                              string
	HTTP, GRPC, Admin, Gossip, Peer string // host:port
	host                            *host  // nil on loopback
	Relay                           *Relay // that others know its peer port by; nil is none

	mu     sync.Mutex
	cmd    *exec.Cmd
	ended  chan struct{} // closed when cmd has ended
	err    error         // how it ended; read after ended
	starts int
}

// args are those of serve, with further flags behind them.
func (n *Node) args(flags ...string) []string {
	args := []string{"serve", "--id", n.ID, "--http", n.HTTP, "--grpc", n.GRPC, "--admin", n.Admin, "--gossip", n.Gossip, "--peer", n.Peer, "--drain", "200ms"}
	for _, other := range n.cluster.Nodes() {
		args = append(args, "--join", other.Gossip)
	}
	if n.Relay != nil {
		args = append(args, "--advertise", relayHost)
	}
	return append(append(args, n.cluster.config.Flags...), flags...)
}

// Start starts the process, with flags of its own behind those of the cluster.
func (n *Node) Start(flags ...string) {
	n.tb.Helper()
	args := n.args(flags...)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.starts++
	log, err := os.Create(n.logPath(n.starts))
	if err != nil {
		n.tb.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(Binary(n.tb), args...)
	cmd.Stdout, cmd.Stderr = log, log
	// A setting of whoever runs the tests is none of the nodes.
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "TOKENRING_") })
	cmd.SysProcAttr = childAttr()
	if err := n.launch(cmd); err != nil {
		n.tb.Fatal(err)
	}
	ended := make(chan struct{})
	n.cmd, n.ended = cmd, ended
	go func() {
		n.err = cmd.Wait()
		close(ended)
	}()
}

// launch starts a process on the node's host.
func (n *Node) launch(cmd *exec.Cmd) (err error) {
	if n.host == nil {
		return cmd.Start()
	}
	if entered := n.host.enter(func() { err = cmd.Start() }); entered != nil {
		return entered
	}
	return err
}

func (n *Node) logPath(start int) string {
	return filepath.Join(n.cluster.dir, fmt.Sprintf("%s.%d.log", n.ID, start))
}

// Log returns what the last process of the node wrote.
func (n *Node) Log() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	text, err := os.ReadFile(n.logPath(n.starts))
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// Restart starts the node again under its id and its ports, after it has ended.
func (n *Node) Restart(flags ...string) {
	n.tb.Helper()
	if n.Running() {
		n.tb.Fatalf("%s still runs", n.ID)
	}
	n.Start(flags...)
}

// Running reports whether the process runs.
func (n *Node) Running() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.cmd == nil {
		return false
	}
	select {
	case <-n.ended:
		return false
	default:
		return true
	}
}

// Kill ends the process with SIGKILL and waits for its end.
func (n *Node) Kill() {
	n.signal(syscall.SIGKILL)
	<-n.ended
}

// Stop stops the process with SIGSTOP: it stays and does nothing.
func (n *Node) Stop() { n.signal(syscall.SIGSTOP) }

// Continue lets a stopped process go on.
func (n *Node) Continue() { n.signal(syscall.SIGCONT) }

// BeginLeaving asks the process to leave, with SIGTERM.
func (n *Node) BeginLeaving() { n.signal(syscall.SIGTERM) }

// Leave asks the process to leave and waits for its good end.
func (n *Node) Leave() {
	n.tb.Helper()
	n.BeginLeaving()
	if err := n.Wait(); err != nil {
		n.tb.Errorf("%s left with %v:\n%s", n.ID, err, n.Log())
	}
}

// Wait waits for the end of the process and returns how it ended.
func (n *Node) Wait() error {
	n.tb.Helper()
	select {
	case <-n.ended:
		return n.err
	case <-time.After(Slow):
		n.tb.Fatalf("%s has not ended after %v", n.ID, Slow)
		return nil
	}
}

func (n *Node) signal(s syscall.Signal) {
	n.tb.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.cmd == nil {
		n.tb.Fatalf("%s was never started", n.ID)
	}
	if err := n.cmd.Process.Signal(s); err != nil {
		n.tb.Fatalf("send %v to %s: %v", s, n.ID, err)
	}
}

// end kills the process if it runs.
func (n *Node) end() {
	if n.Running() {
		n.Kill()
	}
}
