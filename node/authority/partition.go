package authority

import "fmt"

// setRole changes the role of a partition and what lies here of it.
func (m *Machine) setRole(i int, r Role, e Epoch, why Cause) {
	p := &m.parts[i]
	if p.role == Frozen && p.to != 0 {
		m.frozen--
		m.thawed = true
	}
	p.role, p.epoch, p.to, p.claim, p.fetch = r, e, 0, nil, 0
	if r == Holds {
		p.copy, p.pass, p.keep, p.wanted = Version{}, 0, false, false
	}
	m.emit(SetRole{i, r, e, why})
}

// hold makes this node the holder of a partition in a new epoch.
func (m *Machine) hold(i int, e Epoch, why Cause) {
	p := &m.parts[i]
	m.setRole(i, Holds, e, why)
	p.last, p.dropped = e, false
	m.held = append(m.held, Holding{i, e})
}

// release makes what this node held a copy, since the next holder has it or is out.
func (m *Machine) release(i int, why Cause) {
	p := &m.parts[i]
	next, to, held := p.next, p.to, p.epoch
	m.untrack(i, 0)
	m.untrack(i, 1)
	m.setRole(i, None, Epoch{}, why)
	p.since = m.now
	m.adopt(i, next)
	m.tell = m.tell || m.isOut(next) // nobody else knows that this node gave it up
	p.copy, p.pass = Version{Complete: true, Epoch: held, Seq: 1<<64 - 1}, to
	// If the next holder has passed it on, it keeps what has to be kept itself.
	passed := p.last.After(next) && !m.isOut(p.last)
	if p.keep = !passed && (m.config.Replicas > 0 || m.isOut(next)); !p.keep {
		p.copy = Version{}
		m.emit(Forget{i})
	}
}

// yield gives a partition up to a holder in a newer epoch, which is told what was decided
// here.
func (m *Machine) yield(i int, to Epoch) {
	p := &m.parts[i]
	held := p.epoch
	m.untrack(i, 0)
	m.untrack(i, 1)
	m.setRole(i, None, Epoch{}, Yielded)
	p.since = m.now
	m.adopt(i, to)
	p.copy, p.pass = Version{Complete: true, Epoch: held}, 0
	m.owe(i)
	m.emit(Stash{i})
}

// adopt takes note of an epoch.
func (m *Machine) adopt(i int, e Epoch) {
	if p := &m.parts[i]; e.After(p.last) {
		p.last = e
	}
}

// settleAll brings all partitions where they should be, as far as possible now.
func (m *Machine) settleAll() {
	if m.moved || m.owners == nil {
		return // finish places first, and comes back
	}
	for i := range m.parts {
		m.settle(i)
	}
}

// settleSome does so for a part of them, in turn: what is due by time alone can wait for a
// few ticks.
func (m *Machine) settleSome() {
	for range (len(m.parts) + sweep - 1) / sweep {
		m.swept = (m.swept + 1) % len(m.parts)
		m.settle(m.swept)
	}
}

func (m *Machine) settle(i int) {
	if m.moved || m.owners == nil {
		return
	}
	p := &m.parts[i]
	for slot, s := range p.sinks {
		if s.boot != 0 && !m.usable(s.boot) {
			m.untrack(i, slot)
			p.dropped = false
		}
	}
	switch {
	case p.role == Holds:
		if p.last.After(p.epoch) && m.isOut(p.last) {
			m.hold(i, p.last.claimed(m.self.Boot), Resumed)
			m.untrack(i, 0)
			m.untrack(i, 1)
		}
		m.keepCopies(i)
		m.offer(i)
	case p.role == Frozen && p.to == 0:
		if m.now >= p.deadline {
			m.setRole(i, Holds, p.epoch, Resumed)
		}
	case p.role == Frozen && m.isOut(p.next) && p.last.After(p.next) && !m.isOut(p.last):
		m.yield(i, p.last) // who is out has never said that it took the partition
	case p.role == Frozen && m.isOut(p.next):
		m.release(i, Given)
	case p.role == Frozen && !m.paused:
		m.keepCopies(i)
		m.handOver(i)
	}
	m.pay(i)
	m.routeTo(i)
}

// keepCopies keeps copies where they should be: at the next holder, else at the heir. The
// copy that there was stays until the new one is complete.
func (m *Machine) keepCopies(i int) {
	p := &m.parts[i]
	owned := m.owner(i) == m.self.Boot
	want := m.heir(i)
	switch {
	case p.role == Frozen:
		want = p.to
	case !owned:
		want = m.owner(i)
	case m.config.Replicas == 0:
		want = 0
	}
	if want == 0 && owned && p.role == Holds {
		m.untrack(i, 0)
		m.untrack(i, 1)
		m.dropOthers(i, 0) // there is nobody to keep a copy, and nobody has to
		return
	}
	if want == 0 || !m.usable(want) {
		return
	}
	at := p.sinkOf(want)
	if at < 0 {
		at = p.spare()
		m.untrack(i, at)
		m.track(i, at, want, true)
		if owned && p.role == Holds {
			p.dropped = false
		}
	}
	if p.sinks[at].done && owned && p.role == Holds {
		m.untrack(i, 1-at)
		m.dropOthers(i, want)
	}
}

func (p *partition) sinkOf(boot uint64) int {
	for slot, s := range p.sinks {
		if s.boot == boot {
			return slot
		}
	}
	return -1
}

// spare returns the slot whose copy is needed least.
func (p *partition) spare() int {
	for slot, s := range p.sinks {
		if s.boot == 0 {
			return slot
		}
	}
	if p.sinks[0].done {
		return 1
	}
	return 0
}

func (m *Machine) track(i, slot int, to uint64, whole bool) {
	p := &m.parts[i]
	p.sinks[slot] = sink{boot: to, done: !whole}
	m.emit(Track{i, slot, to, p.epoch, whole})
}

func (m *Machine) untrack(i, slot int) {
	p := &m.parts[i]
	if p.sinks[slot].boot != 0 {
		m.emit(Untrack{i, slot, p.sinks[slot].boot})
		p.sinks[slot] = sink{}
	}
}

// dropOthers tells all but the heir to drop their copies, once.
func (m *Machine) dropOthers(i int, heir uint64) {
	if p := &m.parts[i]; !p.dropped || p.spared != heir {
		p.dropped, p.spared = true, heir
		m.drops[heir] = append(m.drops[heir], Holding{i, p.epoch})
	}
}

// dropAt repeats that to a boot which may not have heard it.
func (m *Machine) dropAt(boot uint64) {
	var all []Holding
	for i := range m.parts {
		if p := &m.parts[i]; p.role.holds() && p.to == 0 && p.dropped && p.sinkOf(boot) < 0 {
			all = append(all, Holding{i, p.epoch})
		}
	}
	if len(all) > 0 {
		m.send(boot, Drop{all})
	}
}

// Copied says that a boot has dealt with a whole pass over a partition.
func (m *Machine) Copied(i int, boot uint64) []Effect {
	if at := m.parts[i].sinkOf(boot); at >= 0 {
		m.parts[i].sinks[at].done = true
		m.settle(i)
	}
	return m.finish()
}

// offer freezes a partition whose owner is another node that has a complete copy.
func (m *Machine) offer(i int) {
	p := &m.parts[i]
	to := m.owner(i)
	at := p.sinkOf(to)
	if x := m.members[to]; x == nil || !x.in || at < 0 || !p.sinks[at].done || m.now < p.after || m.paused {
		return
	}
	if m.frozen >= maxFrozen {
		m.queued = true
		return
	}
	m.setRole(i, Frozen, p.epoch, Offered)
	m.frozen++
	p.to, p.next, p.offered = to, newest(p.epoch, p.next).handed(to), false
	m.handOver(i)
}

// offerQueued freezes what has waited for others to be handed over.
func (m *Machine) offerQueued() {
	m.thawed = false
	if !m.queued || m.moved || m.owners == nil {
		return
	}
	m.queued = false
	for i := range m.parts {
		if m.parts[i].role == Holds && m.owner(i) != m.self.Boot {
			if m.offer(i); m.queued {
				return
			}
		}
	}
}

// handOver sends the handover of a frozen partition, once on each stream.
func (m *Machine) handOver(i int) {
	p := &m.parts[i]
	if at := p.sinkOf(p.to); p.offered || at < 0 || !p.sinks[at].done {
		return
	}
	p.offered = true
	h := m.offers[p.to]
	if h == nil {
		h = &Handover{Members: m.list()}
		m.offers[p.to] = h
	}
	h.Parts = append(h.Parts, Holding{i, p.next})
	h.From = append(h.From, p.epoch)
}

// routeTo says where checks of a partition go: to the holder, else to the node that
// should be it.
func (m *Machine) routeTo(i int) {
	p := &m.parts[i]
	r := Route{Partition: i, To: m.owner(i), Epoch: p.last}
	switch {
	case p.role.holds():
		r.To = m.self.Boot
	case p.last.Boot != m.self.Boot && !m.isOut(p.last):
		r.To = p.last.Boot
	}
	if r != p.route {
		p.route = r
		m.emit(r)
	}
}

// Wanted says that a check of a partition was asked here, and this node does not hold it.
func (m *Machine) Wanted(i int) []Effect {
	if p := &m.parts[i]; p.role == None && !p.wanted && m.owners != nil && m.owner(i) == m.self.Boot {
		p.wanted = true
		m.tendClaims()
	}
	return m.finish()
}

// Learn says that another node named a holder.
func (m *Machine) Learn(i int, e Epoch) []Effect {
	if e.After(m.parts[i].last) && !m.parts[i].role.holds() {
		m.adopt(i, e)
		m.settle(i)
	}
	return m.finish()
}

// Takes reports whether buckets from another node may be put into a partition: Copy when
// they come from its holder, Fetched when they were asked for, Merge when this node holds.
func (m *Machine) TakesCopy(from uint64, i int, e Epoch, seq uint64, start, end bool) bool {
	x, p := m.members[from], &m.parts[i]
	if x == nil || !x.in || p.role.holds() || p.last.After(e) {
		return false
	}
	x.heard = m.now
	m.adopt(i, e)
	if start {
		p.pass = from
	}
	switch {
	case p.pass != from:
		return false
	case end:
		p.copy = Version{Complete: true, Epoch: e, Seq: seq}
	case !p.copy.Complete:
		p.copy = Version{Epoch: e, Seq: seq}
	}
	return true
}

// TakesBase reports whether a boot may hand over a partition that it holds in an epoch, and
// so the base of a merge too.
func (m *Machine) TakesBase(from uint64, i int, e Epoch) bool {
	p := &m.parts[i]
	return m.Hears(from) && !p.role.holds() && !p.last.After(e)
}

// waitsFor says what an active node still has to hold before it is ready.
func (m *Machine) waitsFor() string {
	missing, placed := 0, 0
	for i := range m.parts {
		if m.owner(i) != m.self.Boot {
			continue
		}
		if placed++; !m.parts[i].role.holds() {
			missing++
		}
	}
	if missing == 0 {
		return ""
	}
	return fmt.Sprintf("waiting for %d of %d partitions", missing, placed)
}
