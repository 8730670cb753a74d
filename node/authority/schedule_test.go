package authority

import (
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

var (
	schedules = flag.Int("schedules", 400, "random schedules of each kind")
	firstSeed = flag.Uint64("seed", 1, "seed of the first schedule")
	lines     = flag.Int("lines", 120, "of the trace of a schedule that failed")
)

// step does one random thing.
func (s *simulation) step() {
	s.now += time.Duration(s.rand.IntN(4000)) * time.Microsecond
	boots := s.boots()
	n := s.pick(boots)
	if n == nil {
		s.start("")
		return
	}
	if n.resumeAt > 0 {
		if s.now < n.resumeAt {
			return
		}
		n.resumeAt = 0
		s.logf("%d goes on", n.Boot)
		s.do(n, n.machine.Stopped(s.now))
	}
	switch s.rand.IntN(10) {
	case 0, 1:
		s.do(n, n.machine.Tick(s.now))
	case 2:
		s.gossip(n)
	case 3:
		for _, p := range n.machine.Peers() {
			s.open(n, p.Boot)
		}
	case 4:
		i := s.rand.IntN(simPartitions)
		s.pump(n, i, n.stores[i].sinks[s.rand.IntN(2)].to)
	case 5:
		s.spend(n, s.rand.IntN(simPartitions))
	default:
		links := slices.DeleteFunc(sortedLinks(s.links), func(l *simLink) bool {
			to := s.nodes[l.to]
			return to == nil || !s.awake(to) || len(l.queue) == 0 && !(l.ended && l.in)
		})
		for range min(len(links), 3) {
			s.deliver(links[s.rand.IntN(len(links))])
		}
	}
	if n.machine.Drained() && !n.left && s.rand.IntN(2) == 0 {
		s.end(n, true)
	}
}

// end ends a node: with a goodbye, or by a crash.
func (s *simulation) end(n *simNode, clean bool) {
	if clean {
		s.logf("%d says goodbye", n.Boot)
		n.left = true
		for _, other := range s.nodes {
			// It was the last one there, and takes with it what it knows.
			s.crashed = s.crashed || !s.awake(other) || s.apart(n.Boot, other.Boot)
		}
		for _, boot := range s.boots() {
			s.push(n.Boot, boot, Goodbye{})
		}
	} else {
		s.logf("%d crashes", n.Boot)
		s.crash(n)
	}
	delete(s.nodes, n.Boot)
	for _, l := range sortedLinks(s.links) {
		switch {
		case l.to == n.Boot:
			s.endStream(l.from, l.to, true)
			delete(s.links, [2]uint64{l.from, l.to})
		case l.from == n.Boot:
			l.up, l.ended = false, true
			if !clean {
				l.queue = l.queue[:s.rand.IntN(len(l.queue)+1)]
			}
			l.in = true
		}
	}
}

// crash notes what must survive: what had arrived at the heir, if everything was settled.
func (s *simulation) crash(n *simNode) {
	settled := s.settled() == ""
	s.crashed = true
	for i := range simPartitions {
		s.floor[i] = spending{}
		if !settled {
			continue
		}
		for _, boot := range s.boots() {
			if other := s.nodes[boot]; other != n && (other.stores[i].role == Holds || n.stores[i].role == Holds) {
				s.floor[i].merge(other.stores[i].spent)
			}
		}
	}
}

// happen lets something befall a node.
func (s *simulation) happen() {
	boots := s.boots()
	n := s.pick(boots)
	if n == nil {
		return
	}
	active := 0
	for _, boot := range boots {
		if s.nodes[boot].machine.self.State == Active {
			active++
		}
	}
	switch r := s.rand.IntN(1000); {
	case r < 12 && len(boots) < 4 && s.next < 12 && s.whole():
		s.start("")
	case r < 22 && n.machine.self.State == Active && active > 1 && s.whole():
		s.logf("%d leaves", n.Boot)
		s.do(n, n.machine.Leave(s.now))
	case r < 30 && s.faults.crash && len(boots) > 1:
		s.end(n, false)
		if s.rand.IntN(2) == 0 && s.whole() {
			s.start(n.ID)
		}
	case r < 45 && s.faults.breaks && len(boots) > 1:
		if other := s.pick(boots); other != n {
			s.broken = true
			s.logf("the stream from %d to %d breaks", n.Boot, other.Boot)
			s.endStream(n.Boot, other.Boot, false)
		}
	case r < 50 && s.faults.stop && len(boots) > 1 && s.awake(n):
		s.logf("%d stands still", n.Boot)
		n.resumeAt = s.now + 500*time.Millisecond + time.Duration(s.rand.IntN(5000))*time.Millisecond
	case r < 54 && s.faults.split && len(boots) > 1:
		s.part(boots)
	}
}

// whole reports whether all nodes can reach each other and no partition is held by two:
// only then does one come or go, since one that has decided on its own and leaves before it
// meets the others takes with it what it knows.
func (s *simulation) whole() bool {
	for i := range simPartitions {
		holders := 0
		for _, n := range s.nodes {
			if n.stores[i].role != None {
				holders++
			}
		}
		if holders > 1 {
			return false
		}
	}
	for _, n := range s.nodes {
		if !s.awake(n) {
			return false
		}
	}
	for _, a := range s.nodes {
		for _, b := range s.nodes {
			if a != b && (s.split || s.faults.stop) && !s.meet(a, b) {
				return false
			}
		}
	}
	return len(s.cut) == 0
}

// part splits the nodes in two, or heals the split there is.
func (s *simulation) part(boots []uint64) {
	if len(s.cut) > 0 {
		s.logf("the network is whole again")
		clear(s.cut)
		return
	}
	at := 1 + s.rand.IntN(len(boots)-1)
	s.logf("the network splits: %v from %v", boots[:at], boots[at:])
	s.split = true
	for _, a := range boots[:at] {
		for _, b := range boots[at:] {
			s.cut[[2]uint64{min(a, b), max(a, b)}] = true
			s.endStream(a, b, true)
			s.endStream(b, a, true)
		}
	}
}

// settled says why not everything is as it should be, or "".
func (s *simulation) settled() string {
	for i := range simPartitions {
		var holder *simNode
		for _, boot := range s.boots() {
			n := s.nodes[boot]
			if n.stores[i].role == Frozen || n.stores[i].role == Paused {
				return fmt.Sprintf("partition %d is %v at %d", i, n.stores[i].role, boot)
			}
			if n.stores[i].role == Holds {
				if holder != nil {
					return fmt.Sprintf("partition %d is held by %d and %d", i, holder.Boot, boot)
				}
				holder = n
			}
			if n.machine.parts[i].owed {
				return fmt.Sprintf("%d has something of partition %d to be merged", boot, i)
			}
		}
		switch {
		case holder == nil:
			return fmt.Sprintf("partition %d has no holder", i)
		case holder.machine.owners == nil || holder.machine.owner(i) != holder.Boot:
			return fmt.Sprintf("partition %d is held by %d instead of its owner", i, holder.Boot)
		}
		if heir := holder.machine.heir(i); heir != 0 {
			at := holder.machine.parts[i].sinkOf(heir)
			if at < 0 || !holder.machine.parts[i].sinks[at].done || holder.stores[i].sinks[at].news {
				return fmt.Sprintf("partition %d has no complete copy at %d", i, heir)
			}
		}
	}
	for _, boot := range s.boots() {
		if n := s.nodes[boot]; n.machine.self.State != Active || !s.awake(n) || n.machine.NotReady() != "" {
			return fmt.Sprintf("%d is %v: %s", boot, n.machine.self.State, n.machine.NotReady())
		}
	}
	return ""
}

// run plays a schedule: some trouble, then quiet, in which all has to come right.
func (s *simulation) run() {
	for range 200 + s.rand.IntN(1500) {
		s.step()
		s.happen()
		if s.err != nil {
			return
		}
	}
	clear(s.cut)
	s.logf("quiet from here on")
	s.quiet = true
	begin := s.now
	for steps := 0; ; steps++ {
		s.step()
		if s.err != nil {
			return
		}
		if steps%50 == 0 && s.settled() == "" {
			break
		}
		if s.now-begin > 30*time.Second {
			s.fail("not settled after %v: %s", s.now-begin, s.settled())
			return
		}
	}
	if s.crashed || s.broken && (s.split || s.faults.stop) {
		return // some of what was spent may be lost, within the bounds
	}
	for i := range simPartitions {
		for _, boot := range s.boots() {
			if n := s.nodes[boot]; n.stores[i].role == Holds {
				s.mustHave(n, i, s.spent[i])
			}
		}
	}
}

// Tens of thousands of schedules keep what must always hold: one holder for each partition
// at a time, nothing spent is forgotten on planned changes, epochs only grow, a repeated
// handover changes nothing, and when the trouble is over every partition is held by its
// owner and copied to its heir.
func TestSchedules(t *testing.T) {
	kinds := []struct {
		name   string
		faults faults
	}{
		{"planned", faults{}},
		{"broken streams", faults{breaks: true}},
		{"crashes", faults{crash: true}},
		{"crashes and broken streams", faults{crash: true, breaks: true}},
		{"stops", faults{stop: true}},
		{"splits", faults{split: true}},
		{"everything", faults{crash: true, breaks: true, stop: true, split: true}},
	}
	for _, kind := range kinds {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			handed, won, merged := 0, 0, 0
			for seed := *firstSeed; seed < *firstSeed+uint64(*schedules); seed++ {
				s := newSimulation(seed, kind.faults)
				s.run()
				if s.err != nil {
					from := max(0, len(s.trace)-*lines)
					t.Fatalf("seed %d: %v (repeat it with -run '%s' -args -schedules 1 -seed %d)\n%s", seed, s.err, t.Name(), seed, strings.Join(s.trace[from:], "\n"))
				}
				handed, won, merged = handed+s.handed, won+s.won, merged+s.merged
			}
			t.Logf("%d schedules: %d handovers, %d claims, %d merges", *schedules, handed, won, merged)
			if handed == 0 || won == 0 {
				t.Error("the schedules hand nothing over or claim nothing")
			}
		})
	}
}
