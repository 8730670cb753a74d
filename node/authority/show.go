package authority

// A Place is what a node knows of one partition.
type Place struct {
	Role     Role
	Epoch    Epoch  // newest heard of
	Owner    string // id that placement names
	Holder   string // id of the newest holder heard of, "" if it is out or none
	Heir     string // of a partition that this node holds
	Copied   bool   // the heir's copy is complete
	Copy     bool   // there is a copy here,
	Complete bool   // a complete one
}

// Place returns what this node knows of a partition.
func (m *Machine) Place(i int) Place {
	p := &m.parts[i]
	place := Place{Role: p.role, Epoch: p.last, Copy: p.copy != (Version{}), Complete: p.copy.Complete}
	place.Holder = m.idOf(m.holder(i))
	if m.owners != nil {
		place.Owner = m.idOf(m.owners[i])
	}
	if p.role.holds() {
		place.Heir, place.Copied = m.idOf(m.heir(i)), m.copied(i)
	}
	return place
}

// Counts are what a node knows of all partitions together.
type Counts struct {
	Roles   [Paused + 1]int // of this node, by role
	Copied  int             // held here, with a complete copy at the heir
	Copies  int             // complete copies that lie here, of what others hold
	Holders map[string]int  // by id of the newest holder heard of, "" if it is out or none
}

// Counts returns what this node knows of all partitions together.
func (m *Machine) Counts() Counts {
	c := Counts{Holders: map[string]int{}}
	held := map[uint64]int{}
	for i := range m.parts {
		p := &m.parts[i]
		c.Roles[p.role]++
		held[m.holder(i)]++
		if p.role.holds() && m.copied(i) {
			c.Copied++
		} else if !p.role.holds() && p.copy.Complete {
			c.Copies++
		}
	}
	for boot, n := range held {
		c.Holders[m.idOf(boot)] += n
	}
	return c
}

// holder returns the boot that is known to hold a partition, 0 if it is out or none.
func (m *Machine) holder(i int) uint64 {
	p := &m.parts[i]
	if p.role.holds() {
		return m.self.Boot
	}
	if p.last.Boot == m.self.Boot || m.isOut(p.last) {
		return 0
	}
	return p.last.Boot
}

// copied reports whether the heir of a partition that this node holds has a complete copy.
func (m *Machine) copied(i int) bool {
	heir, p := m.heir(i), &m.parts[i]
	at := p.sinkOf(heir)
	return heir != 0 && at >= 0 && p.sinks[at].done
}

func (m *Machine) idOf(boot uint64) string {
	if x := m.members[boot]; x != nil {
		return x.ID
	}
	if boot == m.self.Boot {
		return m.self.ID
	}
	return ""
}
