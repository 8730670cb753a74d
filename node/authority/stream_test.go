package authority

import (
	"fmt"
	"maps"
	"strings"
)

// endStream ends the stream from a boot to another. Lost, or what is on its way arrives up
// to some point.
func (s *simulation) endStream(from, to uint64, lost bool) {
	l := s.links[[2]uint64{from, to}]
	if l == nil || l.ended {
		return
	}
	l.ended = true
	keep := 0
	if !lost {
		keep = s.rand.IntN(len(l.queue) + 1)
	}
	l.queue = l.queue[:keep]
	if n := s.nodes[from]; n != nil && l.up && s.awake(n) {
		l.up = false
		s.do(n, n.machine.Down(s.now, to))
	}
	l.up = false
}

// open opens a stream that should be there.
func (s *simulation) open(n *simNode, to uint64) {
	other := s.nodes[to]
	key := [2]uint64{n.Boot, to}
	if l := s.links[key]; l != nil && (!l.ended || l.in) {
		return // the old one has not been read to its end
	}
	if other == nil {
		s.do(n, n.machine.Gone(s.now, to))
		return
	}
	if s.apart(n.Boot, to) || !s.awake(other) {
		return
	}
	s.links[key] = &simLink{from: n.Boot, to: to, up: true}
	s.do(n, n.machine.Up(s.now, to))
}

// deliver lets a message arrive.
func (s *simulation) deliver(l *simLink) {
	n := s.nodes[l.to]
	if len(l.queue) == 0 {
		if l.ended && n != nil && l.in {
			l.in = false
			s.logf("%d: stream from %d has ended", l.to, l.from)
			s.do(n, n.machine.Ended(s.now, l.from))
		}
		return
	}
	what := l.queue[0]
	l.queue = l.queue[1:]
	l.in = true
	switch m := what.(type) {
	case simChunk:
		s.deliverChunk(n, l.from, m)
	case Message:
		switch m.(type) {
		case Beat:
		default:
			s.logf("%d <- %d  %T%s", l.to, l.from, m, strings.ReplaceAll(brief(m), "\n", " "))
		}
		s.do(n, n.machine.Hear(s.now, l.from, m))
	}
}

func brief(m Message) string {
	switch m := m.(type) {
	case Handover:
		return fmt.Sprint(m.Parts)
	case Accepted:
		return fmt.Sprint(m.Parts)
	case Refused:
		return fmt.Sprint(m.Parts)
	case Announce:
		return fmt.Sprint(m.Held)
	case Hello:
		return fmt.Sprint(m.Held, m.Last)
	case Ask:
		return fmt.Sprint(m.Claim, m.Parts)
	case Answer:
		return fmt.Sprint(m.Claim, m.Parts)
	case Drop:
		return fmt.Sprint(m.Parts)
	}
	return ""
}

func (s *simulation) deliverChunk(n *simNode, from uint64, c simChunk) {
	st := &n.stores[c.partition]
	if c.merge || c.number != 0 {
		s.logf("%d <- %d  buckets of partition %d, %d spent", n.Boot, from, c.partition, c.spent.total())
	}
	switch {
	case c.merge:
		if n.machine.TakesMerge(from, c.partition) {
			s.mergeInto(n, c.partition, c.spent)
			s.do(n, n.machine.Merged(c.partition))
		} else {
			st.stash.merge(c.spent)
			s.do(n, n.machine.Owe(c.partition))
		}
		s.heard(from, n.Boot, func(m *Machine) []Effect { return m.Paid(c.partition, c.number) })
	case c.number != 0:
		if n.machine.TakesFetched(from, c.partition, c.number) {
			st.spent = maps.Clone(c.spent)
			s.do(n, n.machine.Fetched(from, c.partition, c.number))
		}
	default:
		if n.machine.TakesCopy(from, c.partition, c.epoch, 0, c.start, c.end) {
			st.spent = maps.Clone(c.spent)
		}
		if c.start {
			s.heard(from, n.Boot, func(m *Machine) []Effect { return m.Copied(c.partition, n.Boot) })
		}
	}
}

// heard tells a sender that something was dealt with.
func (s *simulation) heard(from, to uint64, event func(*Machine) []Effect) {
	l, sender := s.links[[2]uint64{from, to}], s.nodes[from]
	if l != nil && l.up && sender != nil && s.awake(sender) {
		s.do(sender, event(sender.machine))
	}
}

func (s *simulation) mergeInto(n *simNode, i int, what spending) {
	s.merged++
	n.stores[i].spent.merge(what)
	s.changed(&n.stores[i])
}

func (s *simulation) changed(st *simStore) {
	for slot := range st.sinks {
		st.sinks[slot].news = true
	}
}
