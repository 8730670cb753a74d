package test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/tokenring/tokenring/test/harness"
	"github.com/tokenring/tokenring/test/wait"
)

// standstill is how long a node is stopped, with SIGSTOP, before it goes on.
const standstill = 5 * time.Second

// A node stands still under load and goes on: the others decide in between, and when it is
// back it decides nothing that they have decided, and gets its partitions once.
func TestStandstillUnderLoad(t *testing.T) {
	c := harness.Start(t, harness.Config{Nodes: 3, Flags: []string{"--forward-timeout", budget.String()}, Limits: loadLimits})
	c.WaitSettled(true)
	nodes := c.Nodes()
	victim, survivors := nodes[1], []*harness.Node{nodes[0], nodes[2]}
	before := epochs(t, c)
	var g generations
	l := startLoad(t, loadClients, nodes, g.check)
	l.await(t, 2000)

	f := fall{victim: victim.ID, window: crashWindow + lagOf(t, victim), at: time.Now()}
	victim.Stop()
	l.ask(survivors...)
	states := map[string][]string{} // in which each of the others lists the node
	watch := func() {
		for _, n := range survivors {
			states[n.ID] = slices.Compact(append(states[n.ID], n.State(victim.ID)))
		}
	}
	wait.For(t, harness.Slow, "five seconds to pass", func() bool { watch(); return time.Since(f.at) > standstill })
	back := time.Now()
	victim.Continue()
	wait.For(t, harness.Slow, "the cluster to settle", func() bool { watch(); return c.Unsettled(true) == "" })
	settled := time.Since(back)
	l.ask(nodes...)
	n, _ := l.seen(0, none)
	wait.For(t, harness.Slow, "checks after the return", func() bool { watch(); m, _ := l.seen(0, none); return m > n+4000 })
	samples := l.end()

	t.Logf("settled %v after the return", settled.Round(time.Millisecond))
	for id, listed := range states {
		if !slices.Equal(listed, []string{"active", "dead", "active"}) {
			t.Errorf("%s listed the node as %v", id, listed)
		}
	}
	checkDegraded(t, samples, f, back)
	checkEpochs(t, before, epochs(t, c), victim.ID)
	assessLosses(t, samples, []fall{f})
}

// A node stands still, and one of those that have claimed its partitions leaves before it is
// back. What was spent before the standstill counts once, and so does what was spent since.
func TestStandstillWhileAClaimerLeaves(t *testing.T) {
	const keys, before, since = 90, 4, 3
	c := harness.Start(t, harness.Config{Nodes: 4, Flags: patient, Limits: churnLimits})
	c.WaitSettled(true)
	nodes := c.Nodes()
	asked, victim, leaver := nodes[0], nodes[1], nodes[3]
	ask := func(key string, cost int64) harness.Answer {
		a, err := asked.Check(inTime(t), harness.Check{Limit: "ten", Key: key, Cost: &cost})
		if err != nil || a.Degraded {
			t.Fatalf("%+v, error %v", a, err)
		}
		return a
	}
	var held []string // keys, by the victim
	for i := 0; len(held) < keys; i++ {
		if key := fmt.Sprintf("key-%d", i); ask(key, before).Node == victim.ID {
			held = append(held, key)
		}
	}
	wait.For(t, harness.Slow, "copies to be told of that", func() bool { return c.Unsettled(true) == "" && lagOf(t, victim) > 0 })
	victim.Stop()
	var moved []string
	wait.For(t, harness.Slow, "the others to decide", func() bool {
		a, err := asked.Check(inTime(t), harness.Check{Limit: "ten", Key: held[0], Cost: new(int64)})
		return err == nil && !a.Degraded && a.Node != victim.ID
	})
	for _, key := range held {
		if ask(key, since).Node == leaver.ID {
			moved = append(moved, key)
		}
	}
	t.Logf("%d of %d keys are handed on by a node that has claimed them", len(moved), keys)
	if len(moved) == 0 {
		t.Fatal("no key is: the test would not see what it is for")
	}
	leaver.BeginLeaving()
	wait.For(t, harness.Slow, "those keys to be decided elsewhere", func() bool {
		return !slices.ContainsFunc(moved, func(key string) bool { return ask(key, 0).Node == leaver.ID })
	})
	victim.Continue()
	if err := leaver.Wait(); err != nil {
		t.Error(err)
	}
	c.WaitSettled(true)
	for _, key := range held {
		if left := ask(key, 0).Remaining; left != 10-before-since {
			t.Errorf("%s has %d tokens left, want %d", key, left, 10-before-since)
		}
	}
}

// checkDegraded wants no answer by the failure policy once the silence was found, nor after
// the return of the node.
func checkDegraded(t *testing.T, samples []sample, f fall, back time.Time) {
	t.Helper()
	var in, after time.Duration // when the last one was answered
	count := 0
	for _, s := range samples {
		switch {
		case s.err != nil:
			t.Errorf("a caller of %s got %v", s.asked, s.err)
		case !s.answer.Degraded:
		case s.at.Before(back):
			count, in = count+1, max(in, s.at.Sub(f.at))
		default:
			count, after = count+1, max(after, s.at.Sub(back))
		}
	}
	t.Logf("%d answers by the failure policy, the last one %v after the stop and %v after the return", count, in.Round(time.Millisecond), after.Round(time.Millisecond))
	if in > found+margin || after > time.Second+margin {
		t.Errorf("want the last one at most %v after the stop and a second after the return, and %v more on a busy machine", found, margin)
	}
}

// An era is a time of holding: who holds a partition, and in which epoch.
type era struct {
	holder string
	epoch  uint64
}

// epochs returns by partition what its holder says.
func epochs(t *testing.T, c *harness.Cluster) map[int]era {
	t.Helper()
	held := map[int]era{}
	for _, n := range running(c) {
		for _, p := range n.Ring() {
			if p.Role == "holding" {
				held[p.Partition] = era{n.ID, p.Epoch}
			}
		}
	}
	return held
}

// checkEpochs wants that the partitions of the node have been claimed once and handed back
// once, and that no others have moved.
func checkEpochs(t *testing.T, before, after map[int]era, victim string) {
	t.Helper()
	moved := 0
	for i, was := range before {
		is := after[i]
		// A claim has the next even counter, a handover the next odd one.
		claimedAndBack := ((was.epoch|1)+1+1)|1 == is.epoch
		switch {
		case is.holder != was.holder:
			t.Errorf("partition %d of %s is now held by %q", i, was.holder, is.holder)
		case is.epoch == was.epoch:
		case was.holder == victim && claimedAndBack:
			moved++
		default:
			t.Errorf("partition %d of %s went from epoch %d to %d", i, was.holder, was.epoch, is.epoch)
		}
	}
	t.Logf("%d of %d partitions were claimed once and handed back once", moved, len(before))
	if moved == 0 {
		t.Error("no partition was claimed: the test has not seen a standstill")
	}
}
