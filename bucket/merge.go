package bucket

import (
	"strings"
	"unique"
)

// A Base is what two histories of a partition have in common: its buckets at the moment
// when a second node began to decide from a copy.
type Base struct{ buckets map[string]held }

// Snapshot returns what lies in a partition now.
func (s *Store) Snapshot(partition int) *Base {
	sh := &s.shards[partition]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	base := &Base{buckets: make(map[string]held, len(sh.held))}
	for _, b := range sh.held {
		base.buckets[b.id] = b
	}
	return base
}

// deficit returns how far a bucket of the base would be below full by now, in units of a
// limit. Without a base it would be full.
func (b *Base) deficit(id string, of Limit, now int64) int64 {
	if b == nil {
		return 0
	}
	was, ok := b.buckets[id]
	if !ok {
		return 0
	}
	from := was.rule.Value().Limit
	was.level.refill(from, now)
	return of.debt(from.capacity()-was.level.units, from)
}

// Based returns the buckets of a base as they would be by now, for another store to go on
// with. Nil has none.
func (s *Store) Based(b *Base) []State {
	if b == nil {
		return nil
	}
	now, states := s.now(), make([]State, 0, len(b.buckets))
	for _, was := range b.buckets {
		if st := was.state(now); st.Deficit > 0 {
			states = append(states, st)
		}
	}
	return states
}

// Rebase adds buckets to a base, nil being an empty one, whose levels count from now on.
func (s *Store) Rebase(b *Base, states []State) *Base {
	if b == nil {
		b = &Base{buckets: make(map[string]held, len(states))}
	}
	for i := range states {
		st := &states[i]
		id := st.Name + "\x00" + st.Key
		b.buckets[id] = held{id: id, rule: unique.Make(rule{st.Limit, st.Version}), level: st.level(s.now())}
	}
	return b
}

// Beyond takes from the deficits of buckets what they have from a base, so that they can be
// merged by a node that has no base.
func (s *Store) Beyond(states []State, base *Base) {
	now := s.now()
	for i := range states {
		st := &states[i]
		st.Deficit = max(0, st.Deficit-base.deficit(st.Name+"\x00"+st.Key, st.Limit, now))
	}
}

// Merge folds another history of the same buckets into a partition, whatever its role. With
// all of them refilled to now, a bucket then lacks what either history spent
// beyond the base, and the base: max(a, b, a+b-base), two capacities at the most. Without
// a base it is taken as full.
func (s *Store) Merge(partition int, states []State, base *Base) {
	for i := range states {
		if st := &states[i]; !st.Gone && st.Deficit > 0 {
			s.merge(&s.shards[partition], st, base)
		}
	}
}

func (s *Store) merge(sh *shard, st *State, base *Base) {
	hash := s.hash(st.Name, st.Key)
	fresh := held{id: st.Name + "\x00" + st.Key, hash: hash, rule: unique.Make(rule{st.Limit, st.Version})}
	sh.mu.Lock()
	i := sh.find(hash, st.Name, st.Key)
	role := sh.role
	sh.mu.Unlock()
	if i < 0 {
		s.reserve(role)
	}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	now := s.now()
	again := sh.find(hash, st.Name, st.Key)
	switch {
	case i < 0 && (again >= 0 || sh.role != role):
		s.places(role).Add(-1)
	case again < 0 && i < 0:
		fresh.level = full(st.Limit, now)
		sh.insert(fresh)
		again = len(sh.held) - 1
	}
	if again < 0 {
		return // it was dropped meanwhile, or the partition is no longer held
	}
	b := &sh.held[again]
	b.adopt(&Take{Limit: st.Limit, Version: st.Version}, now)
	l := b.rule.Value().Limit
	mine, theirs, common := l.capacity()-b.level.units, l.debt(st.Deficit, st.Limit), base.deficit(b.id, l, now)
	deficit := min(max(mine, theirs, mine+theirs-common), 2*l.capacity())
	b.level = level{units: l.capacity() - deficit, at: now}
	sh.note(again, now)
}

// debt converts a deficit that may be above the capacity.
func (l Limit) debt(deficit int64, from Limit) int64 {
	if over := deficit - from.capacity(); over > 0 {
		return l.convert(from.capacity(), from) + l.convert(over, from)
	}
	return l.convert(deficit, from)
}

// state is the bucket as it is now.
func (b *held) state(now int64) State {
	r := b.rule.Value()
	b.level.refill(r.Limit, now)
	name, key, _ := strings.Cut(b.id, "\x00")
	return State{Name: name, Key: key, Limit: r.Limit, Version: r.version, Deficit: r.capacity() - b.level.units}
}

// level is the level of a bucket whose deficit counts from now on.
func (st *State) level(now int64) level {
	return level{units: max(st.Limit.capacity()-st.Deficit, -st.Limit.capacity()), at: now}
}
