package test

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

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

// Three nodes start at the same moment, with each other as seeds, and each partition gets
// one holder. All leave at once and are started again, and it does again.
func TestStartsAtOnce(t *testing.T) {
	rounds := 3
	if full {
		rounds = 100
	}
	var took, ends []time.Duration
	for round := range rounds {
		t.Run(strconv.Itoa(round), func(t *testing.T) {
			c := harness.New(t, harness.Config{Nodes: 3})
			for range 2 {
				begin := time.Now()
				for _, n := range c.Nodes() {
					n.Start()
				}
				wait.For(t, harness.Slow, "three ready nodes", func() bool {
					return !slices.ContainsFunc(c.Nodes(), func(n *harness.Node) bool { return !n.Ready() })
				})
				took = append(took, time.Since(begin))
				c.WaitSettled(false)
				begin = time.Now()
				for _, n := range c.Nodes() {
					n.BeginLeaving()
				}
				for _, n := range c.Nodes() {
					if err := n.Wait(); err != nil {
						t.Errorf("%s left with %v:\n%s", n.ID, err, n.Log())
					}
				}
				ends = append(ends, time.Since(begin))
			}
		})
	}
	slices.Sort(took)
	slices.Sort(ends)
	t.Logf("%d times three nodes: ready after %s, ended after %s", len(took), spread(took), spread(ends))
	if most := 3*time.Second + margin; quantile(took, 1) > most {
		t.Errorf("not ready within %v", most)
	}
}

// spread describes sorted durations.
func spread(sorted []time.Duration) string {
	return fmt.Sprintf("p50 %v, p99 %v, max %v", quantile(sorted, 0.5).Round(time.Millisecond),
		quantile(sorted, 0.99).Round(time.Millisecond), quantile(sorted, 1).Round(time.Millisecond))
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
	c.WaitSettled(true)
}
