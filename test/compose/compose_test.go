// Package compose tests what docker-compose.yml brings up: three nodes behind HAProxy.
// Where the base images cannot be pulled, standins.sh makes some under the same names.
package compose

import (
	"context"
	"encoding/json"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tokenring/tokenring/test/wait"
)

var nodes = []string{"node-1", "node-2", "node-3"}

func TestCompose(t *testing.T) {
	tool := needEngine(t)
	needImages(t)
	ports := freePorts(t, 2)
	d := newDeployment(t, tool, "HTTP_PORT="+ports[0], "GRPC_PORT="+ports[1],
		// A busy machine must not bring in the failure policy, and the drain has to outlast
		// two health checks of HAProxy's only.
		"TOKENRING_FORWARD_TIMEOUT=2s", "TOKENRING_DRAIN=2s")
	d.run(t, upLimit, "up", "--detach")
	c := newCallers(t, "127.0.0.1:"+ports[0], "127.0.0.1:"+ports[1])

	t.Run("nodes are healthy and not root", func(t *testing.T) {
		d.waitHealthy(t)
		for _, node := range nodes {
			if user := docker(t, "inspect", "--format", "{{.Config.User}}", d.container(t, node)); user != "65532:65532" {
				t.Errorf("%s runs as %q", node, user)
			}
		}
	})
	t.Run("all nodes are asked", func(t *testing.T) {
		for protocol, ask := range c.asks {
			waitForAll(t, protocol, ask)
		}
	})
	t.Run("the client is known by its address", func(t *testing.T) { testIdentity(t, c) })
	t.Run("a stream stays open", func(t *testing.T) { testStream(t, c) })
	t.Run("one bucket for all nodes", func(t *testing.T) { testOneBucket(t, c) })
	t.Run("a node is killed and comes back", func(t *testing.T) { testKill(t, d, c) })
	t.Run("a node is stopped", func(t *testing.T) { testStop(t, d, c) })
	t.Run("redis", func(t *testing.T) { testRedis(t, d, c) })
}

// freePorts returns ports of 127.0.0.1 that nobody listens on.
func freePorts(t *testing.T, n int) []string {
	t.Helper()
	var ports []string
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		_, port, err := net.SplitHostPort(l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		ports = append(ports, port)
	}
	return ports
}

// waitForAll asks until every node has answered. HAProxy may take a moment longer than the
// engine to find the nodes ready.
func waitForAll(t *testing.T, protocol string, ask ask) {
	t.Helper()
	seen := map[string]bool{}
	wait.For(t, waitLimit, protocol+" answers of all nodes", func() bool {
		if a, err := ask(t.Context(), check{limit: "default"}); err == nil {
			seen[a.via] = true
		}
		return slices.Equal(slices.Sorted(maps.Keys(seen)), nodes)
	})
}

func testIdentity(t *testing.T, c callers) {
	refused := answer{code: "permission_denied"}
	tests := []struct {
		name  string
		check check
		want  answer
	}{
		{"plain", check{}, answer{key: gateway}},
		{"claims another address", check{forwardedFor: "203.0.113.7"}, answer{key: gateway}},
		{"claims to be behind HAProxy", check{forwardedFor: "203.0.113.7, " + subnet + ".2"}, answer{key: gateway}},
		{"sends a key", check{key: "user:123"}, refused},
		{"sends a key and claims a trusted address", check{key: "user:123", forwardedFor: "127.0.0.1"}, refused},
	}
	for protocol, ask := range c.asks {
		for _, test := range tests {
			t.Run(protocol+" "+test.name, func(t *testing.T) {
				// More often than there are nodes, so that each is asked.
				for range 2 * len(nodes) {
					test.check.limit = "default"
					got, err := ask(t.Context(), test.check)
					if err != nil {
						t.Fatal(err)
					}
					if got.key != test.want.key || got.code != test.want.code {
						t.Errorf("%s: got key %q, code %q, want key %q, code %q", got.via, got.key, got.code, test.want.key, test.want.code)
					}
				}
			})
		}
	}
}

func testStream(t *testing.T, c callers) {
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	stream, err := c.grpc.CheckStream(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for id := range uint64(5) {
		a, err := streamOne(ctx, stream, id)
		if err != nil {
			t.Fatal(err)
		}
		if a.Error != nil || a.Key != gateway {
			t.Errorf("check %d got %v", id, a)
		}
	}
}

// testOneBucket sends 100 checks at once to a bucket of 20 that does not refill, by way of
// both protocols and all nodes.
func testOneBucket(t *testing.T, c callers) {
	const checks, burst = 100, 20
	var (
		wg      sync.WaitGroup
		allowed atomic.Int64
	)
	for i := range checks {
		ask := c.asks["HTTP"]
		if i%2 == 1 {
			ask = c.asks["gRPC"]
		}
		wg.Go(func() {
			a, err := ask(t.Context(), check{limit: "trial"})
			switch {
			case err != nil:
				t.Error(err)
			case a.degraded || a.code != "":
				t.Errorf("got %+v", a)
			case a.allowed:
				allowed.Add(1)
			}
		})
	}
	wg.Wait()
	if got := allowed.Load(); got != burst {
		t.Errorf("%d of %d checks were allowed, want %d", got, checks, burst)
	}
}

// A load asks without a pause until it is stopped, and counts whom HAProxy asked.
type load struct {
	wg   sync.WaitGroup
	stop chan struct{}

	mu     sync.Mutex // guards what follows
	via    map[string]int
	errors []error
}

func startLoad(t *testing.T, c callers) *load {
	l := &load{stop: make(chan struct{}), via: map[string]int{}}
	for protocol, ask := range c.asks {
		for range 2 {
			l.wg.Go(func() { l.run(t.Context(), protocol, ask) })
		}
	}
	return l
}

func (l *load) run(ctx context.Context, protocol string, ask ask) {
	pace := time.NewTicker(5 * time.Millisecond)
	defer pace.Stop()
	for {
		select {
		case <-l.stop:
			return
		case <-pace.C:
		}
		a, err := ask(ctx, check{limit: "default"})
		l.mu.Lock()
		l.via[protocol+" "+a.via]++
		if err != nil {
			l.errors = append(l.errors, err)
		}
		l.mu.Unlock()
	}
}

// waitForNode waits until HAProxy asks the node, from now on, over both protocols.
func (l *load) waitForNode(t *testing.T, c callers, node string) {
	t.Helper()
	before := l.counts()
	wait.For(t, waitLimit, node+" to be asked again", func() bool {
		now := l.counts()
		for protocol := range c.asks {
			if now[protocol+" "+node] == before[protocol+" "+node] {
				return false
			}
		}
		return true
	})
}

func (l *load) counts() map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.via)
}

// end stops the load, whose callers must have seen no error.
func (l *load) end(t *testing.T) {
	t.Helper()
	close(l.stop)
	l.wg.Wait()
	t.Logf("answers: %v", l.via)
	if len(l.errors) > 0 {
		t.Errorf("%d callers saw an error, the first: %v", len(l.errors), l.errors[0])
	}
}

// waitForMembers waits until a node counts as many active members.
func waitForMembers(t *testing.T, d *deployment, node string, want int) {
	t.Helper()
	var out string
	wait.For(t, waitLimit, "the members to be known", func() bool {
		out = d.run(t, askLimit, "exec", "-T", node, "/tokenring", "members", "-o", "json")
		var body struct{ Members []struct{ ID, State string } }
		if err := json.Unmarshal([]byte(out), &body); err != nil {
			t.Fatalf("read members %q: %v", out, err)
		}
		active := 0
		for _, m := range body.Members {
			if m.State == "active" {
				active++
			}
		}
		return active == want
	})
}

func testKill(t *testing.T, d *deployment, c callers) {
	const victim = "node-2"
	id := d.container(t, victim)
	l := startLoad(t, c)
	defer l.end(t)
	l.waitForNode(t, c, victim)
	docker(t, "kill", "--signal", "KILL", id)
	waitForMembers(t, d, "node-1", len(nodes)-1)
	waitForMembers(t, d, "node-3", len(nodes)-1)
	l.waitForNode(t, c, "node-1")
	l.waitForNode(t, c, "node-3")
	docker(t, "start", id)
	l.waitForNode(t, c, victim)
	waitForMembers(t, d, "node-1", len(nodes))
}

func testStop(t *testing.T, d *deployment, c callers) {
	const victim = "node-3"
	id := d.container(t, victim)
	l := startLoad(t, c)
	defer l.end(t)
	l.waitForNode(t, c, victim)
	d.run(t, upLimit, "stop", victim)
	if code := docker(t, "inspect", "--format", "{{.State.ExitCode}}", id); code != "0" {
		t.Errorf("%s ended with exit code %s", victim, code)
	}
	waitForMembers(t, d, "node-1", len(nodes)-1)
}

// testRedis runs the same nodes with a Redis, and believes the client, so that it may send
// a key.
func testRedis(t *testing.T, d *deployment, c callers) {
	d.env = append(d.env, redisProfile, "TOKENRING_BACKEND=redis", "TOKENRING_REDIS_URL=redis://redis:6379",
		"TOKENRING_TRUSTED_CALLERS="+gateway)
	d.run(t, upLimit, "up", "--detach")
	d.waitHealthy(t)
	for protocol, ask := range c.asks {
		waitForAll(t, protocol, ask)
		a, err := ask(t.Context(), check{limit: "default", key: "user:123"})
		if err != nil || a.key != "user:123" {
			t.Errorf("%s check with a key got %+v, %v", protocol, a, err)
		}
	}
	testOneBucket(t, c)
	if size := d.run(t, askLimit, "exec", "-T", "redis", "redis-cli", "DBSIZE"); size == "0" {
		t.Error("Redis holds no bucket")
	}
}
