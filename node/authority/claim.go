package authority

import (
	"slices"
	"time"
)

// A claim asks all others whether this node may hold some partitions.
type claim struct {
	number  uint64
	parts   []int
	asked   map[uint64]time.Duration // when
	answers map[uint64]map[int]Verdict
	decided bool
}

// vacant reports whether this node should claim a partition. After a while it asks even if
// the last holder that it knows is there: that one may have handed over to one that is not,
// and the answers will tell.
func (m *Machine) vacant(i int) bool {
	p := &m.parts[i]
	if p.role != None || m.owner(i) != m.self.Boot || m.now < p.after {
		return false
	}
	if m.isOut(p.last) {
		return p.wanted || m.now-p.since >= vacancy
	}
	return m.now-p.since >= doubt
}

// tendClaims claims what is vacant, and goes on with the claims there are.
func (m *Machine) tendClaims() {
	if m.moved || m.owners == nil || m.paused || m.self.State != Active {
		return
	}
	var vacant []int
	for i := range m.parts {
		if m.vacant(i) {
			vacant = append(vacant, i)
		}
	}
	if len(vacant) > 0 {
		m.claimed++
		c := &claim{number: m.claimed, parts: vacant, asked: map[uint64]time.Duration{}, answers: map[uint64]map[int]Verdict{}}
		m.claims = append(m.claims, c)
		for _, i := range vacant {
			p := &m.parts[i]
			p.role, p.claim, p.wanted = Claiming, c, false
		}
	}
	for _, c := range m.claims {
		m.tend(c)
	}
	m.claims = slices.DeleteFunc(m.claims, func(c *claim) bool {
		return !slices.ContainsFunc(c.parts, func(i int) bool { return m.parts[i].claim == c })
	})
}

// tend asks whoever has not answered, and decides once all have.
func (m *Machine) tend(c *claim) {
	if c.decided {
		m.tendFetches(c)
		return
	}
	complete := true
	for _, boot := range m.order {
		x := m.members[boot]
		if x.out || c.answers[boot] != nil {
			continue
		}
		complete = false
		if at, ok := c.asked[boot]; x.up && (!ok || m.now-at >= again) {
			c.asked[boot] = m.now
			m.send(boot, Ask{Claim: c.number, Members: m.list(), Parts: m.claimParts(c)})
		}
	}
	if complete {
		m.decide(c)
	}
}

func (m *Machine) claimParts(c *claim) []Holding {
	var parts []Holding
	for _, i := range c.parts {
		if p := &m.parts[i]; p.claim == c {
			parts = append(parts, Holding{i, p.last})
		}
	}
	return parts
}

// askAgain repeats all questions to a boot, whose stream is a new one.
func (m *Machine) askAgain(boot uint64) {
	for _, c := range m.claims {
		delete(c.asked, boot)
	}
}

// decide ends a claim that all members have answered: each partition is held, fetched or
// given up.
func (m *Machine) decide(c *claim) {
	c.decided = true
	fetches := map[uint64][]int{}
	for _, i := range c.parts {
		p := &m.parts[i]
		if p.claim != c {
			continue
		}
		last, best, at, ok := p.last, p.copy, uint64(0), m.owner(i) == m.self.Boot
		for _, boot := range m.order {
			v, answered := c.answers[boot][i]
			if m.members[boot].out {
				continue
			}
			ok = ok && answered && v.Yes
			if v.Last.After(last) {
				last, ok = v.Last, false
			}
			if v.Copy.Compare(best) > 0 {
				best, at = v.Copy, boot
			}
		}
		m.adopt(i, last)
		switch {
		case !ok || !m.isOut(p.last):
			m.giveUp(i)
		case at != 0:
			p.fetch, p.deadline = at, m.now+fetching
			fetches[at] = append(fetches[at], i)
		default:
			m.win(i)
		}
	}
	for _, boot := range sorted(fetches) {
		m.send(boot, Fetch{Claim: c.number, Parts: fetches[boot]})
	}
}

// tendFetches gives up partitions whose copy does not come.
func (m *Machine) tendFetches(c *claim) {
	for _, i := range c.parts {
		p := &m.parts[i]
		if p.claim != c {
			continue
		}
		if x := m.members[p.fetch]; x == nil || !x.in || !x.up || m.now >= p.deadline {
			m.giveUp(i)
		}
	}
}

// win makes this node the holder of what it has claimed.
func (m *Machine) win(i int) {
	p := &m.parts[i]
	if x := m.members[p.last.Boot]; x != nil && x.silent {
		m.emit(Snapshot{i})
	}
	m.hold(i, p.last.claimed(m.self.Boot), Claimed)
	m.settle(i)
}

// giveUp ends the claim of a partition, for now.
func (m *Machine) giveUp(i int) {
	p := &m.parts[i]
	p.role, p.claim, p.fetch = None, nil, 0
	if !m.isOut(p.last) {
		p.since = m.now
	}
	p.after = m.now + retry + time.Duration(m.config.Rand.Int64N(int64(retry)))
	m.routeTo(i)
}

// asked answers a claim.
func (m *Machine) asked(from *member, a Ask) {
	answer := Answer{Claim: a.Claim, Members: m.list()}
	for _, h := range a.Parts {
		p := &m.parts[h.Partition]
		yes := !p.role.holds() && !p.last.After(h.Epoch)
		m.adopt(h.Partition, h.Epoch)
		yes = yes && (p.last.Boot == from.Boot || m.isOut(p.last)) && (p.role != Claiming || from.Boot < m.self.Boot)
		if yes && p.role == Claiming {
			m.giveUp(h.Partition)
		}
		answer.Parts = append(answer.Parts, Verdict{Partition: h.Partition, Yes: yes, Last: p.last, Copy: p.copy})
	}
	m.send(from.Boot, answer)
}

func (m *Machine) answered(from *member, a Answer) {
	at := slices.IndexFunc(m.claims, func(c *claim) bool { return c.number == a.Claim && !c.decided })
	if at < 0 {
		return
	}
	verdicts := make(map[int]Verdict, len(a.Parts))
	for _, v := range a.Parts {
		verdicts[v.Partition] = v
	}
	m.claims[at].answers[from.Boot] = verdicts
	m.tendClaims()
}

// fetched sends the copies that a claim needs.
func (m *Machine) fetched(from *member, f Fetch) {
	for _, i := range f.Parts {
		if p := &m.parts[i]; !p.role.holds() {
			m.emit(Export{To: from.Boot, Partition: i, Epoch: p.copy.Epoch, Seq: p.copy.Seq, Number: f.Claim})
		}
	}
}

// TakesFetched reports whether a copy was asked for by a claim.
func (m *Machine) TakesFetched(from uint64, i int, claim uint64) bool {
	x, p := m.members[from], &m.parts[i]
	return x != nil && x.in && p.role == Claiming && p.claim != nil && p.claim.number == claim && p.fetch == from
}

// Fetched says that all of a copy that was asked for is in.
func (m *Machine) Fetched(from uint64, i int, claim uint64) []Effect {
	if m.TakesFetched(from, i, claim) {
		m.win(i)
	}
	return m.finish()
}
