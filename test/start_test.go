package test

import (
	"net"
	"strings"
	"testing"

	"github.com/tokenring/tokenring/test/harness"
	"github.com/tokenring/tokenring/test/wait"
)

// What makes a start impossible ends it, with an exit code and one line that says why.
func TestStartsThatCannotBe(t *testing.T) {
	busy, err := net.Listen("tcp", harness.FreeAddr(t))
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	taken := busy.Addr().String()
	running := harness.Start(t, harness.Config{Nodes: 1}).Nodes()[0]

	for _, c := range []struct {
		name  string
		flags []string
		want  string
	}{
		{"busy HTTP port", []string{"--http", taken}, "--http " + taken + ": listen tcp " + taken + ": bind: address already in use"},
		{"busy gRPC port", []string{"--grpc", taken}, "--grpc " + taken},
		{"busy admin port", []string{"--admin", taken}, "--admin " + taken},
		{"busy metrics port", []string{"--metrics", taken}, "--metrics " + taken},
		{"busy peer port", []string{"--peer", taken}, "--peer " + taken},
		{"busy gossip port", []string{"--gossip", taken}, "--gossip"},
		{"wrong Redis URL", []string{"--redis-url", "http://127.0.0.1:6379"}, "--redis-url"},
		{"policy redis without Redis", []string{"--on-failure", "redis"}, "--redis-url"},
		{"another cluster", []string{"--cluster", "other", "--join", running.Gossip}, `its --cluster is "tokenring", this node's is "other"`},
		{"an id that is taken", []string{"--id", running.ID, "--join", running.Gossip}, `id "node-1" is taken by a running node at ` + running.Peer},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := harness.New(t, harness.Config{Nodes: 1, Flags: append([]string{"--id", "late"}, c.flags...)}).Nodes()[0]
			n.Start()
			if err := n.Wait(); err == nil {
				t.Error("the start has ended without an error code")
			}
			lines := strings.Split(strings.TrimSpace(n.Log()), "\n")
			last := lines[len(lines)-1]
			if !strings.HasPrefix(last, "tokenring: ") || !strings.Contains(last, c.want) {
				t.Errorf("it said %q, want %q in it", last, c.want)
			}
			if !running.Ready() || len(running.Active()) != 1 {
				t.Error("the running node is not what it was")
			}
		})
	}
}

// A node that is started again while its old process is being found gone waits for that.
func TestRestartRightAfterAKill(t *testing.T) {
	c := harness.Start(t, harness.Config{Nodes: 3})
	n := c.Nodes()[2]
	n.Kill()
	n.Restart()
	c.WaitReady()
	if got := len(n.Active()); got != 3 {
		t.Errorf("the node lists %d active members, want 3", got)
	}
}

// All stop at once and start again, each with all others as seeds.
func TestAllStopAndStart(t *testing.T) {
	c := harness.Start(t, harness.Config{Nodes: 3})
	for _, n := range c.Nodes() {
		n.Kill()
	}
	for _, n := range c.Nodes() {
		n.Restart()
	}
	c.WaitReady()
}

// A node that leaves is not taken for dead, and its keys are decided by the others
// without a degraded answer in between.
func TestLeaveUnderLoad(t *testing.T) {
	c := harness.Start(t, harness.Config{Nodes: 3, Flags: patient, Limits: loadLimits})
	nodes := c.Nodes()
	l := startLoad(t, loadClients, nodes[:2], func(client, i int) harness.Check {
		return harness.Check{Limit: "api", Key: loadKey(client*7 + i)}
	})
	grow := func() {
		t.Helper()
		before, _ := l.seen(0, none)
		wait.For(t, harness.Slow, "checks under load", func() bool { n, _ := l.seen(0, none); return n > before+2000 })
	}
	grow()
	nodes[2].Leave()
	grow()
	if got := nodes[0].State(nodes[2].ID); got != "" {
		t.Errorf("the node that left is listed as %q", got)
	}
	for _, s := range l.end() {
		if s.err != nil || s.answer.Degraded {
			t.Errorf("a caller of %s got %+v, %v", s.asked, s.answer, s.err)
		}
	}
}
