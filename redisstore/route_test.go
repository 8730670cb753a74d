package redisstore

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tokenring/tokenring/bucket"
	"github.com/tokenring/tokenring/test/redistest"
	"github.com/tokenring/tokenring/test/wait"
)

func TestShardsKeepTheirKeys(t *testing.T) {
	a, b, c := "redis://10.0.0.1", "redis://10.0.0.2/1", "unix:///tmp/redis.sock"
	where := func(urls ...string) (names []string) {
		s := newStore(t, strings.Join(urls, ","))
		for i := range 3000 {
			sv := serverOf(t, s, bucket.Take{Name: "api", Key: strconv.Itoa(i)})
			names = append(names, sv.name)
		}
		return names
	}
	three, turned, two := where(a, b, c), where(c, a, b), where(a, b)
	count := map[string]int{}
	for i, name := range three {
		count[name]++
		if turned[i] != name {
			t.Fatalf("key %d: the order of the URLs matters", i)
		}
		if two[i] != name && name != "/tmp/redis.sock" {
			t.Fatalf("key %d moved though its shard stayed", i)
		}
	}
	for name, n := range count {
		if n < 850 || n > 1150 {
			t.Errorf("%s has %d of 3000 keys, want about 1000", name, n)
		}
	}
	if len(count) != 3 {
		t.Errorf("keys are on %d shards, want 3", len(count))
	}
}

func TestShardsExactlyTheBurstAtOnce(t *testing.T) {
	exactly20(t, redistest.Start(t).URL()+","+redistest.Start(t).URL())
}

// A shard that is gone takes its own keys along and nothing else: no other shard decides
// for them, which would grant them a second burst.
func TestShardGone(t *testing.T) {
	one, two := redistest.Start(t), redistest.Start(t)
	s := newStoreWith(t, Config{URL: one.URL() + "," + two.URL(), Timeout: time.Second})
	take := bucket.Take{Name: "api", Limit: limit(t, 0, 0, 1), Cost: 1}
	gone, there := on(t, s, one, take), on(t, s, two, take)
	mustTake(t, s, gone)
	one.Kill()
	for range 200 {
		out := make([]bucket.Outcome, 2)
		s.Take(t.Context(), []bucket.Take{gone, there}, out)
		if out[0].Err == nil {
			t.Fatalf("got %+v, want an error", out[0])
		}
		if out[1].Err != nil {
			t.Fatalf("the other shard: %v", out[1].Err)
		}
	}
	one.Restart()
	wait.For(t, time.Second, "the shard to be used again", func() bool {
		return takeOne(t.Context(), s, gone).Err == nil
	})
	if n := two.Client().DBSize(t.Context()).Val(); n != 1 {
		t.Errorf("the other shard has %d buckets, want its one", n)
	}
}

// A shard that does not answer holds nobody up but those who ask it.
func TestShardStopped(t *testing.T) {
	one, two := redistest.Start(t), redistest.Start(t)
	stoppedServer(t, newStore(t, one.URL()+","+two.URL()), one, two)
}

func stoppedServer(t *testing.T, s *Store, stopped, other *redistest.Server) {
	take := bucket.Take{Name: "api", Limit: limit(t, 1, time.Hour, 1000), Cost: 1}
	held, free := on(t, s, stopped, take), on(t, s, other, take)
	mustTake(t, s, held)
	mustTake(t, s, free)
	stopped.Pause()
	defer stopped.Resume()
	ctx, cancel := context.WithCancel(t.Context())
	out := make([]bucket.Outcome, 2)
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Take(ctx, []bucket.Take{held, free}, out)
	}()
	for range 100 {
		mustTake(t, s, free)
	}
	wait.For(t, patience, "the check for the other server to be decided", func() bool {
		return mustTake(t, s, free).Remaining < 1000-101
	})
	cancel()
	<-done
	if out[0].Err == nil || out[1].Err != nil {
		t.Errorf("got %+v of the stopped server and %+v of the other", out[0], out[1])
	}
}

func TestCluster(t *testing.T) {
	c := redistest.StartCluster(t, 3)
	t.Run("exactly the burst at once", func(t *testing.T) { exactly20(t, c.URL()) })
	t.Run("uses all nodes", func(t *testing.T) {
		s := newStore(t, "redis+cluster://"+c.Nodes[0].Addr())
		var takes []bucket.Take
		for i := range 300 {
			takes = append(takes, bucket.Take{Name: "spread", Key: strconv.Itoa(i), Limit: limit(t, 1, time.Hour, 5), Cost: 1})
		}
		out := make([]bucket.Outcome, len(takes))
		s.Take(t.Context(), takes, out)
		for i, o := range out {
			if o.Err != nil || o.Remaining != 4 {
				t.Fatalf("check %d: got %+v", i, o)
			}
		}
		for _, n := range c.Nodes {
			if size := n.Client().DBSize(t.Context()).Val(); size < 50 {
				t.Errorf("%s holds %d buckets of 300", n.Addr(), size)
			}
		}
	})
	t.Run("clients cannot choose slots", func(t *testing.T) {
		s := newStore(t, c.URL())
		servers := map[*server]bool{}
		for i := range 50 {
			servers[serverOf(t, s, bucket.Take{Name: "api", Key: fmt.Sprintf("{x}%d", i)})] = true
		}
		if len(servers) != len(c.Nodes) {
			t.Errorf("keys with the same braces are on %d nodes, want %d", len(servers), len(c.Nodes))
		}
	})
	t.Run("a slot moves", func(t *testing.T) { slotMoves(t, c) })
	t.Run("a node is stopped", func(t *testing.T) {
		stoppedServer(t, newStore(t, c.URL()), c.Nodes[0], c.Nodes[1])
	})
	t.Run("a node dies", func(t *testing.T) { nodeDies(t, c) })
}

// slotMoves moves a slot while a bucket of it is asked: first the other node is asked
// for what the old one does not have (ASK), then for all of the slot (MOVED).
func slotMoves(t *testing.T, c *redistest.Cluster) {
	s := newStore(t, c.URL())
	take := on(t, s, c.Nodes[0], bucket.Take{Name: "moving", Limit: limit(t, 0, 0, 10), Cost: 1})
	from, to := c.Nodes[0].Client(), c.Nodes[1].Client()
	slot := from.ClusterKeySlot(t.Context(), storeKey(&take)).Val()
	set := func(n int, args ...any) {
		client := c.Nodes[n].Client()
		if err := client.Do(t.Context(), append([]any{"cluster", "setslot", slot}, args...)...).Err(); err != nil {
			t.Fatalf("set slot: %v", err)
		}
	}
	fromID, toID := from.ClusterMyID(t.Context()).Val(), to.ClusterMyID(t.Context()).Val()
	set(1, "importing", fromID)
	set(0, "migrating", toID)
	takes := []bucket.Take{take, take, take}
	for left := int64(10); left > 4; left -= 3 {
		out := make([]bucket.Outcome, len(takes))
		s.Take(t.Context(), takes, out)
		for i, o := range out {
			if want := left - 1 - int64(i); o.Err != nil || o.Remaining != want {
				t.Fatalf("while the slot moves, check %d: got %+v, want %d remaining", i, o, want)
			}
		}
		// The script is known there by now; without it ASKING must come along again.
		to.ScriptFlush(t.Context())
	}
	set(1, "node", toID)
	set(0, "node", toID)
	for left := int64(3); left >= 0; left-- {
		if d := mustTake(t, s, take); d.Remaining != left {
			t.Fatalf("after the slot moved: got %+v, want %d remaining", d, left)
		}
	}
	wait.For(t, patience, "the new place of the slot to be known", func() bool {
		return serverOf(t, s, take).options.Addr == c.Nodes[1].Addr()
	})
}

// nodeDies kills a node: its buckets are not decided, all others are, and it is used
// again when it is back.
func nodeDies(t *testing.T, c *redistest.Cluster) {
	s := newStoreWith(t, Config{URL: c.URL(), Timeout: time.Second})
	take := bucket.Take{Name: "dying", Limit: limit(t, 1, time.Hour, 1000), Cost: 1}
	gone, there := on(t, s, c.Nodes[2], take), on(t, s, c.Nodes[1], take)
	mustTake(t, s, gone)
	c.Nodes[2].Kill()
	for range 100 {
		if o := takeOne(t.Context(), s, gone); o.Err == nil {
			t.Fatalf("got %+v, want an error", o)
		}
		mustTake(t, s, there)
	}
	c.Nodes[2].Restart() // it kept its slots in a file, and forgot the buckets
	wait.For(t, patience, "the node to be used again", func() bool {
		return takeOne(t.Context(), s, gone).Err == nil
	})
}

// A cluster that cannot be reached when the store is made is used as soon as it can be.
func TestClusterComesLater(t *testing.T) {
	c := redistest.StartCluster(t, 1)
	c.Nodes[0].Kill()
	s := newStoreWith(t, Config{URL: c.URL(), Timeout: time.Second})
	take := bucket.Take{Name: "api", Key: "k", Limit: limit(t, 1, time.Hour, 5), Cost: 1}
	for range 200 {
		if o := takeOne(t.Context(), s, take); o.Err == nil {
			t.Fatalf("got %+v, want an error", o)
		}
	}
	c.Nodes[0].Restart()
	wait.For(t, patience, "the cluster to be used", func() bool {
		return takeOne(t.Context(), s, take).Err == nil
	})
}

// Nodes that have left do not pile up.
func TestClusterForgetsNodesThatAreGone(t *testing.T) {
	s := newStore(t, "redis+cluster://127.0.0.1:1")
	c := s.router.(*cluster)
	at := func(addr string) *server {
		sv, err := c.at(addr)
		if err != nil {
			t.Fatal(err)
		}
		return sv
	}
	gone, there := at("10.0.0.1:6379"), at("10.0.0.2:6379")
	gone.note(context.DeadlineExceeded)
	at("10.0.0.3:6379")
	if len(c.servers) != 2 || at("10.0.0.2:6379") != there {
		t.Errorf("holds %d nodes, want the one that answers and the new one", len(c.servers))
	}
	if at("10.0.0.1:6379") == gone {
		t.Error("a node that was dropped is still used")
	}
}
