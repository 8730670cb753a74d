package test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tokenring/tokenring/test/harness"
	"github.com/tokenring/tokenring/test/wait"
)

// A sample is one check under load and what came of it.
type sample struct {
	at     time.Time // when it was answered
	took   time.Duration
	asked  string // id of the node that was asked
	key    string
	cost   int64
	answer harness.Answer
	err    error
}

// load is a steady stream of checks from many clients, spread over nodes and keys.
type load struct {
	nodes   atomic.Pointer[[]*harness.Node] // that are asked
	stop    context.CancelFunc
	clients sync.WaitGroup

	mu      sync.Mutex // guards samples
	samples []sample
}

// pace is the pause of one client between two checks.
const pace = 20 * time.Millisecond

// startLoad runs clients until end. Each asks the nodes in turn for key after key.
func startLoad(t *testing.T, clients int, nodes []*harness.Node, check func(client, i int) harness.Check) *load {
	ctx, cancel := context.WithCancel(t.Context())
	l := &load{stop: cancel}
	l.nodes.Store(&nodes)
	for client := range clients {
		l.clients.Go(func() {
			<-time.After(pace * time.Duration(client) / time.Duration(clients)) // not all at the same moment
			tick := time.NewTicker(pace)
			defer tick.Stop()
			for i := 0; ; i++ {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
					l.one(client, i, check(client, i))
				}
			}
		})
	}
	t.Cleanup(func() { l.end() })
	return l
}

func (l *load) one(client, i int, c harness.Check) {
	nodes := *l.nodes.Load()
	n := nodes[(client+i)%len(nodes)]
	cost := int64(1)
	if c.Cost != nil {
		cost = *c.Cost
	}
	begin := time.Now()
	a, err := n.Check(context.Background(), c)
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.samples = append(l.samples, sample{at: now, took: now.Sub(begin), asked: n.ID, key: c.Key, cost: cost, answer: a, err: err})
}

// ask makes the clients ask these nodes from now on.
func (l *load) ask(nodes ...*harness.Node) { l.nodes.Store(&nodes) }

// end stops the clients and returns everything they saw.
func (l *load) end() []sample {
	l.stop()
	l.clients.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.samples
}

// seen returns how many samples there are and whether any from the given one on matches.
func (l *load) seen(from int, match func(sample) bool) (int, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.samples), slices.ContainsFunc(l.samples[min(from, len(l.samples)):], match)
}

// await waits for so many further samples.
func (l *load) await(t *testing.T, more int) {
	t.Helper()
	before, _ := l.seen(0, none)
	wait.For(t, harness.Slow, "checks under load", func() bool { n, _ := l.seen(0, none); return n >= before+more })
}

// latencies describes how long answers took.
func latencies(samples []sample) string {
	var took []time.Duration
	for _, s := range samples {
		took = append(took, s.took)
	}
	slices.Sort(took)
	return fmt.Sprintf("%d answers, p50 %v, p99 %v, max %v", len(took),
		quantile(took, 0.5).Round(10*time.Microsecond), quantile(took, 0.99).Round(10*time.Microsecond), quantile(took, 1).Round(10*time.Microsecond))
}
