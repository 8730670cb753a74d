package harness

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// A host is a network namespace of its own, on a bridge with those of the other nodes of a
// cluster: nodes gossip and forward over the bridge. Clients ask a node on the loopback of
// its host, which they enter for that, so that they reach it whatever is cut.
type host struct {
	name string
	addr string // on the bridge
}

// hostOf finds the host of a node's HTTP, gRPC or admin address.
var hostOf sync.Map // host:port to *host

var hostClusters atomic.Uint32

// NeedHosts skips a test where no hosts can be made, by name. Under CI=true it fails then.
func NeedHosts(tb testing.TB) {
	tb.Helper()
	why := ""
	if os.Geteuid() != 0 {
		why = "only root may make network namespaces"
	}
	for _, tool := range []string{"ip", "nft"} {
		if _, err := exec.LookPath(tool); err != nil && why == "" {
			why = tool + " is not installed"
		}
	}
	switch {
	case why == "" && canEnter:
	case os.Getenv("CI") == "true":
		tb.Fatalf("hosts of their own: %s", why)
	default:
		tb.Skipf("hosts of their own need Linux, root, ip and nft: %s", why)
	}
}

// network makes the bridge of a cluster, in a namespace of its own, and removes it with the
// test.
func network(tb testing.TB) (name string) {
	tb.Helper()
	name = fmt.Sprintf("tokenring-%d-%d", os.Getpid(), hostClusters.Add(1))
	tool(tb, "ip", "netns", "add", name)
	tb.Cleanup(func() { tool(tb, "ip", "netns", "del", name) })
	tool(tb, "ip", "-n", name, "link", "add", "bridge", "type", "bridge")
	tool(tb, "ip", "-n", name, "link", "set", "bridge", "up")
	return name
}

// addHost puts the n-th host, from 1, on the bridge of a network.
func addHost(tb testing.TB, network string, n int) *host {
	tb.Helper()
	h := &host{name: fmt.Sprintf("%s-%d", network, n), addr: fmt.Sprintf("10.77.0.%d", n)}
	port := fmt.Sprintf("port%d", n)
	tool(tb, "ip", "netns", "add", h.name)
	tb.Cleanup(func() { tool(tb, "ip", "netns", "del", h.name) })
	tool(tb, "ip", "-n", h.name, "link", "set", "lo", "up")
	tool(tb, "ip", "-n", network, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", h.name)
	tool(tb, "ip", "-n", network, "link", "set", port, "master", "bridge", "up")
	tool(tb, "ip", "-n", h.name, "addr", "add", h.addr+"/24", "dev", "eth0")
	tool(tb, "ip", "-n", h.name, "link", "set", "eth0", "up")
	h.nft(tb, "add table inet cut")
	h.nft(tb, "add chain inet cut in { type filter hook input priority 0; }")
	return h
}

// moveTo puts a node on a host.
func (n *Node) moveTo(h *host) {
	n.host = h
	for _, addr := range []*string{&n.Gossip, &n.Peer} {
		*addr = h.addr + strings.TrimPrefix(*addr, "127.0.0.1")
	}
	for _, addr := range []string{n.HTTP, n.GRPC, n.Admin} {
		hostOf.Store(addr, h)
	}
}

func (h *host) nft(tb testing.TB, command string) {
	tb.Helper()
	tool(tb, "ip", "netns", "exec", h.name, "nft", command)
}

func tool(tb testing.TB, name string, args ...string) {
	tb.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		tb.Errorf("%s %s: %v: %s", name, strings.Join(args, " "), err, out)
	}
}

// dial connects from within the host of an address, if that has one.
func dial(ctx context.Context, network, addr string) (conn net.Conn, err error) {
	var d net.Dialer
	h, ok := hostOf.Load(addr)
	if !ok {
		return d.DialContext(ctx, network, addr)
	}
	if entered := h.(*host).enter(func() { conn, err = d.DialContext(ctx, network, addr) }); entered != nil {
		return nil, entered
	}
	return conn, err
}

// Lose drops a part of what hosts send to others, from 0 to 100 percent, until Heal.
func (c *Cluster) Lose(percent int, from, to []*Node) {
	c.tb.Helper()
	for _, receiver := range to {
		for _, sender := range from {
			some := fmt.Sprintf("numgen random mod 100 < %d ", percent)
			if percent == 100 {
				some = "" // nft refuses a comparison that is always true
			}
			receiver.host.nft(c.tb, "add rule inet cut in ip saddr "+sender.host.addr+" "+some+"drop")
		}
	}
}

// Split keeps some hosts and all others from hearing each other, until Heal.
func (c *Cluster) Split(side ...*Node) {
	c.tb.Helper()
	rest := slices.DeleteFunc(c.Nodes(), func(n *Node) bool { return slices.Contains(side, n) })
	c.Lose(100, side, rest)
	c.Lose(100, rest, side)
}

// Heal lets all hosts hear each other again.
func (c *Cluster) Heal() {
	c.tb.Helper()
	for _, n := range c.Nodes() {
		n.host.nft(c.tb, "flush chain inet cut in")
	}
}
