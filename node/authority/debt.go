package authority

// owe notes that there is something to merge at the holder.
func (m *Machine) owe(i int) {
	p := &m.parts[i]
	p.owed, p.debtor = true, 0
	p.debt++
}

// Owe says that what another node wanted to be merged here was stashed instead, since this
// node does not hold the partition.
func (m *Machine) Owe(i int) []Effect {
	m.owe(i)
	m.settle(i)
	return m.finish()
}

// Paid says that a holder has dealt with what was stashed of a partition, by the number
// that the export had. What was stashed since is another export.
func (m *Machine) Paid(i int, number uint64) []Effect {
	if p := &m.parts[i]; p.owed && p.debt == number {
		p.owed, p.debtor = false, 0
		m.emit(Unstash{i})
	}
	return m.finish()
}

// pay sends what was stashed to the holder, once on each stream. If that is this node by
// now, it merges it itself.
func (m *Machine) pay(i int) {
	p := &m.parts[i]
	switch to := p.last.Boot; {
	case !p.owed || p.debtor == to:
	case p.role == Holds:
		p.owed, p.debtor = false, 0
		m.emit(MergeStash{i})
	case !p.role.holds() && m.usable(to):
		p.debtor = to
		m.emit(Export{To: to, Partition: i, Merge: true, Number: p.debt})
	}
}

// Merged says that all that another holder has decided is in.
func (m *Machine) Merged(i int) []Effect {
	if p := &m.parts[i]; p.role == Frozen && p.to == 0 {
		m.setRole(i, Holds, p.epoch, Resumed)
		m.settle(i)
	}
	return m.finish()
}

// TakesMerge reports whether the history of another holder may be merged into a partition.
func (m *Machine) TakesMerge(from uint64, i int) bool {
	x, p := m.members[from], &m.parts[i]
	return x != nil && x.in && (p.role == Holds || p.role == Frozen && p.to == 0)
}
