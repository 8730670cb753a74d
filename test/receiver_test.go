package test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	peerv1 "github.com/tokenring/tokenring/proto/peer/v1"
	"github.com/tokenring/tokenring/test/harness"
	"github.com/tokenring/tokenring/test/wait"
)

// A joining node is killed when the first handovers to it, one from each other node, are on
// their way. Nothing is lost then, with copies elsewhere or without: the senders have
// everything.
func TestReceiverDiesBeforeInstalling(t *testing.T) {
	for _, replicas := range []int{1, 0} {
		t.Run(fmt.Sprintf("replicas %d", replicas), func(t *testing.T) {
			h := startHandovers(t, replicas, 2, 20)
			for range h.rounds {
				h.killBeforeInstalling()
			}
			h.exact()
		})
	}
}

func (h *handovers) killBeforeInstalling() {
	h.t.Helper()
	n := h.join()
	c := h.hold(1, func(to *harness.Node, _ string, note *peerv1.Note) bool { return to == n && note.GetHandover() != nil })
	n.Start()
	c.wait(h.t)
	wait.For(h.t, harness.Slow, "a handover from each node", func() bool { return c.lost() == len(running(h.c))-1 })
	n.Kill()
	died := time.Now()
	h.settle(died, n.ID+" died before it installed anything")
	c.release()
	if held := c.held(n.ID); held > 0 {
		h.t.Errorf("%s has said to hold %d partitions, want none", n.ID, held)
	}
}

// A node is killed when it has said to hold what it was handed over, and before the sender
// hears of that: one that joins, and then one that takes over from one that leaves. What is
// lost is what the death of any node costs.
func TestReceiverDiesAfterInstalling(t *testing.T) {
	h := startHandovers(t, 1, 1, 10)
	var falls []fall
	for range h.rounds {
		n := h.join()
		c := h.hold(1+rand.IntN(100), func(_ *harness.Node, from string, note *peerv1.Note) bool {
			return from == n.ID && note.GetAccepted() != nil
		})
		n.Start()
		falls = append(falls, h.kill(c))
		h.settle(falls[len(falls)-1].at, n.ID+" died, which had joined")

		n.Restart()
		h.c.WaitSettled(true)
		c = h.hold(1+rand.IntN(100), func(to *harness.Node, _ string, note *peerv1.Note) bool {
			return to == n && note.GetAccepted() != nil
		})
		n.BeginLeaving()
		f := h.kill(c)
		falls = append(falls, f)
		if err := n.Wait(); err != nil {
			t.Errorf("%s left with %v:\n%s", n.ID, err, n.Log())
		}
		h.settle(f.at, f.victim+" died, which took over from "+n.ID)
		h.node(f.victim).Restart()
		h.c.WaitSettled(true)
		h.l.ask(running(h.c)...)
	}
	samples := h.l.end()
	assessCallers(t, samples, falls)
	h.within(samples, falls)
}

// kill kills the node whose acknowledgement is held.
func (h *handovers) kill(c *catch) fall {
	h.t.Helper()
	caught := c.wait(h.t)
	victim := h.node(caught.from)
	// What it decides while the stream is held has no copy.
	f := fall{victim: victim.ID, window: crashWindow + lagOf(h.t, victim)}
	f.at = time.Now()
	f.window += f.at.Sub(caught.at)
	victim.Kill()
	h.l.ask(slices.DeleteFunc(*h.l.nodes.Load(), func(n *harness.Node) bool { return n == victim })...)
	c.release()
	h.t.Logf("%s died with its answer to %s held up, which was about %d partitions; it had said to hold %d", victim.ID, caught.to.ID,
		len(caught.note.GetAccepted().GetPartitions()), c.held(victim.ID))
	return f
}

// A caught is a note that is held up.
type caught struct {
	at   time.Time
	from string
	to   *harness.Node
	note *peerv1.Note
}

// A catch holds up a note, and loses it and all others that match from then on.
type catch struct {
	h        *handovers
	caught   chan caught
	released chan struct{}

	mu      sync.Mutex // guards what follows
	matched int
	losses  int
	holds   map[string]map[uint32]bool // partitions that were said to be held, by id
}

// hold holds up the given one of the notes that match, and those that match after it.
func (h *handovers) hold(which int, match func(to *harness.Node, from string, n *peerv1.Note) bool) *catch {
	c := &catch{h: h, caught: make(chan caught, 1), released: make(chan struct{}), holds: map[string]map[uint32]bool{}}
	h.hook(func(to *harness.Node, from string, n *peerv1.Note) harness.Fate {
		if !c.see(which, match(to, from, n), caught{time.Now(), from, to, n}) {
			return harness.Pass
		}
		select {
		case <-c.released:
		case <-h.t.Context().Done():
		}
		return harness.Break
	})
	return c
}

// see counts a note and reports whether it is to be held up.
func (c *catch) see(which int, matches bool, n caught) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.holds[n.from] == nil {
		c.holds[n.from] = map[uint32]bool{}
	}
	for _, of := range []*peerv1.Holdings{n.note.GetAccepted(), n.note.GetAnnounce().GetHeld()} {
		for _, p := range of.GetPartitions() {
			c.holds[n.from][p] = true
		}
	}
	if !matches {
		return false
	}
	if c.matched++; c.matched < which {
		return false
	}
	c.losses++
	if c.matched == which {
		c.caught <- n
	}
	return true
}

// wait waits for the note.
func (c *catch) wait(t *testing.T) caught {
	t.Helper()
	select {
	case n := <-c.caught:
		return n
	case <-time.After(harness.Slow):
		t.Fatal("the note that is to be held up has not come")
		return caught{}
	}
}

// release loses what is held up, and lets all pass from now on.
func (c *catch) release() {
	c.h.hook(nil)
	close(c.released)
}

// held returns how many partitions a node has said to hold, until release.
func (c *catch) held(id string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.holds[id])
}

// lost returns how many notes were held up.
func (c *catch) lost() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.losses
}

// within takes what is left of each bucket, and wants it to have given ten: more only by
// what the falls may have cost, and less only by what was charged and not answered.
func (h *handovers) within(samples []sample, falls []fall) {
	h.t.Helper()
	spent, may, unsure := maps.Clone(h.spent), map[string]int{}, map[string]int{}
	byVictims, beyond, bound, short := 0, 0, 0, 0
	for _, s := range samples {
		if s.cost == 0 {
			continue
		}
		decided := s.err == nil && !s.answer.Degraded
		if decided && s.answer.Allowed {
			spent[s.key]++
		} else {
			unsure[s.key]++
		}
		for _, f := range falls {
			recent := s.answer.Node == f.victim && s.at.Before(f.at) && s.at.After(f.at.Add(-f.window))
			if recent {
				byVictims++
			}
			if f.open(s) || recent {
				may[s.key]++
				bound++
			}
			if f.open(s) && decided {
				unsure[s.key]++ // by the dead too
			}
		}
	}
	eachKey(h.t, running(h.c), func(key string, a harness.Answer) bool {
		if a.Allowed {
			spent[key]++
		}
		return a.Allowed
	})
	for i := range churnKeys {
		key := churnKey(i)
		over := spent[key] - churnBurst
		beyond += max(0, over)
		short += max(0, -over)
		if over > may[key] || -over > unsure[key] {
			h.t.Errorf("%s gave %d of %d, want at most %d more and %d less", key, spent[key], churnBurst, may[key], unsure[key])
		}
	}
	for _, f := range falls {
		h.t.Logf("%s fell: what it answered in its last %v may be lost", f.victim, f.window.Round(100*time.Microsecond))
	}
	h.t.Logf("%d falls; %d of %d tokens given beyond, want at most %d (%d answers of the dead, others in flight); %d charged and not answered",
		len(falls), beyond, churnKeys*churnBurst, bound, byVictims, short)
}
