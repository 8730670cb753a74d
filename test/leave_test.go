package test

import (
	"sync"
	"testing"
	"time"

	"github.com/tokenring/tokenring/test/harness"
	"github.com/tokenring/tokenring/test/wait"
)

// A node that leaves is not taken for dead, and its keys are decided by the others
// without a degraded answer in between.
func TestLeaveUnderLoad(t *testing.T) {
	c := harness.Start(t, harness.Config{Nodes: 3, Flags: patient, Limits: loadLimits})
	nodes := c.Nodes()
	l := startLoad(t, loadClients, nodes[:2], func(client, i int) harness.Check {
		return harness.Check{Limit: "api", Key: loadKey(client*7 + i)}
	})
	l.await(t, 2000)
	nodes[2].Leave()
	l.await(t, 2000)
	if got := nodes[0].State(nodes[2].ID); got != "" {
		t.Errorf("the node that left is listed as %q", got)
	}
	for _, s := range l.end() {
		if s.err != nil || s.answer.Degraded {
			t.Errorf("a caller of %s got %+v, %v", s.asked, s.answer, s.err)
		}
	}
}

// Two of three nodes leave at the same moment, and neither can take what the other one has:
// every bucket gives what it holds, no more and no less. The last node then leaves too, and
// decides to its end.
func TestLeavingAtOnce(t *testing.T) {
	rounds := 1
	if full {
		rounds = 10
	}
	for range rounds {
		leaveAtOnce(t)
	}
}

func leaveAtOnce(t *testing.T) {
	c := harness.Start(t, harness.Config{Nodes: 3, Flags: patient, Limits: loadLimits})
	nodes := c.Nodes()
	last := nodes[2]
	var g generations
	l := startLoad(t, loadClients, nodes, g.check)
	l.await(t, 4000)
	l.ask(last)
	var leaving sync.WaitGroup
	for _, n := range nodes[:2] {
		leaving.Go(n.Leave)
	}
	leaving.Wait()
	l.await(t, 4000)
	c.WaitSettled(false)
	samples := l.end()
	for _, s := range samples {
		if s.err != nil || s.answer.Degraded {
			t.Errorf("a caller of %s got %+v, %v", s.asked, s.answer, s.err)
		}
	}
	assessLosses(t, samples, nil)

	begin := time.Now()
	last.BeginLeaving()
	wait.For(t, harness.Slow, "the last node to begin to leave", func() bool { return !last.Ready() })
	for last.Running() {
		a, err := last.Check(inTime(t), harness.Check{Limit: "api", Key: "last"})
		if err != nil {
			break // it has closed its ports
		}
		if a.Degraded || a.Node != last.ID {
			t.Errorf("the last node said %+v", a)
		}
	}
	if err := last.Wait(); err != nil {
		t.Errorf("the last node left with %v:\n%s", err, last.Log())
	}
	t.Logf("the last node ended after %v", time.Since(begin).Round(time.Millisecond))
}
