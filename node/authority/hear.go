package authority

import "time"

// Hear hands over a message from a boot. Of messages, nothing counts before a Hello.
func (m *Machine) Hear(now time.Duration, from uint64, message Message) []Effect {
	m.now = max(m.now, now)
	if h, ok := message.(Hello); ok {
		m.greeted(from, h)
		return m.finish()
	}
	x := m.members[from]
	if x == nil || !x.in {
		return m.finish()
	}
	x.heard = m.now
	switch msg := message.(type) {
	case Announce:
		m.learnAll(msg.Members)
		m.announced(x, msg.Held)
	case Handover:
		m.learnAll(msg.Members)
		m.handed(x, msg)
	case Accepted:
		for _, h := range msg.Parts {
			if p := &m.parts[h.Partition]; p.role == Frozen && p.to == from && p.next == h.Epoch {
				m.release(h.Partition, Given)
				m.settle(h.Partition)
			}
		}
	case Refused:
		m.refused(from, msg)
	case Ask:
		m.learnAll(msg.Members)
		m.asked(x, msg)
	case Answer:
		m.learnAll(msg.Members)
		m.answered(x, msg)
	case Fetch:
		m.fetched(x, msg)
	case Drop:
		m.dropCopies(x, msg)
	case Goodbye:
		x.State = Left
		m.moved = true
	}
	return m.finish()
}

// Hears reports whether what a boot sends counts.
func (m *Machine) Hears(boot uint64) bool {
	x := m.members[boot]
	return x != nil && x.in
}

func (m *Machine) learnAll(members []Member) {
	for _, named := range members {
		m.learn(named)
	}
}

// greeted takes all that another node knows, on a new stream.
func (m *Machine) greeted(from uint64, h Hello) {
	m.learnAll(h.Members)
	x := m.members[from]
	if x == nil || x.State == Left {
		return
	}
	if x.out {
		m.emit(Dial{})
	}
	x.in, x.met, x.gone, x.out, x.silent, x.heard = true, true, false, false, false, m.now
	m.moved = true
	for i, e := range h.Last[:min(len(h.Last), len(m.parts))] {
		m.adopt(i, e)
	}
	m.announced(x, h.Held)
	for i := range m.parts {
		// What it did not say to have taken, it may not have received, or its answer was lost.
		if p := &m.parts[i]; p.role == Frozen && p.to == from {
			p.offered = false
		}
	}
	m.askAgain(from)
}

// announced takes note of what another node holds.
func (m *Machine) announced(x *member, held []Holding) {
	for _, h := range held {
		i, p := h.Partition, &m.parts[h.Partition]
		switch {
		case p.role == Frozen && p.to == x.Boot && p.next == h.Epoch:
			m.release(i, Given)
		case p.role == Frozen && p.to != 0 && h.Epoch.After(p.next):
			// The next holder took the partition, and it or the one after it went on from
			// there; or x came to hold in another way. The answer to the handover will tell.
		case p.role.holds() && h.Epoch.After(p.epoch):
			m.yield(i, h.Epoch)
		case p.role.holds() && p.epoch.After(h.Epoch):
			m.prevail(i, x)
		case p.role == Claiming && !p.last.After(h.Epoch):
			m.giveUp(i)
		}
		m.adopt(i, h.Epoch)
		m.settle(i)
	}
}

// prevail tells a holder in an older epoch of this one, and waits a moment for what it has
// decided.
func (m *Machine) prevail(i int, x *member) {
	p := &m.parts[i]
	m.send(x.Boot, Announce{Members: m.list(), Held: []Holding{{i, p.epoch}}})
	if p.role == Holds {
		m.setRole(i, Frozen, p.epoch, Offered)
		p.deadline = m.now + merging
	}
}

// handed takes over partitions, or refuses to.
func (m *Machine) handed(x *member, h Handover) {
	for n, part := range h.Parts {
		i := part.Partition
		switch {
		case m.takes(x, part, h.From[n]):
			m.hold(i, part.Epoch, Received)
			x.taken[i] = part.Epoch
			m.accepts[x.Boot] = append(m.accepts[x.Boot], part)
			if m.config.Replicas > 0 && m.usable(x.Boot) {
				m.track(i, 0, x.Boot, false)
			}
			m.settle(i)
		case !part.Epoch.After(x.taken[i]):
			m.accepts[x.Boot] = append(m.accepts[x.Boot], part)
		default:
			x.refused[i] = part.Epoch
			if p := &m.parts[i]; p.role.holds() && p.epoch.After(h.From[n]) {
				m.send(x.Boot, Announce{Members: m.list(), Held: []Holding{{i, p.epoch}}})
			}
			m.refuses[x.Boot] = append(m.refuses[x.Boot], part)
		}
	}
}

// takes reports whether this node is to become the holder by a handover. One that was
// answered before, and came again, gets the same answer.
func (m *Machine) takes(x *member, part Holding, from Epoch) bool {
	i, p := part.Partition, &m.parts[part.Partition]
	switch {
	case !part.Epoch.After(x.taken[i]), !part.Epoch.After(x.refused[i]):
		return false
	case p.owed:
		return false // the sender has to merge that first: only it knows what both have started from
	case part.Epoch.Counter <= p.last.Counter, p.last.After(from) && !m.isOut(p.last):
		return false // another holder has prevailed, this node or one that will tell the sender so
	}
	return m.self.State < Leaving && !m.paused && p.copy.Complete && p.copy.Epoch == from
}

func (m *Machine) refused(from uint64, r Refused) {
	for _, h := range r.Parts {
		p := &m.parts[h.Partition]
		if p.role == Frozen && p.to == from && p.next == h.Epoch {
			if p.last.After(p.next) && !m.isOut(p.last) {
				m.yield(h.Partition, p.last)
				continue
			}
			role := Holds
			if m.paused {
				role = Paused
			}
			m.setRole(h.Partition, role, p.epoch, Resumed)
			p.after = m.now + again
			if at := p.sinkOf(from); at >= 0 {
				m.untrack(h.Partition, at) // its copy was not good enough
			}
			m.settle(h.Partition)
		}
	}
}

// dropCopies lets go of copies, on the word of whoever holds the partitions.
func (m *Machine) dropCopies(x *member, d Drop) {
	m.announced(x, d.Parts)
	for _, h := range d.Parts {
		p := &m.parts[h.Partition]
		if p.role.holds() || p.copy.Epoch.After(h.Epoch) {
			continue
		}
		if p.copy != (Version{}) {
			m.emit(Forget{h.Partition})
		}
		p.copy, p.pass, p.keep = Version{}, 0, false
	}
}
