package bucket

import "unique"

// Begin begins a whole pass over a copy: what it does not bring is dropped by Complete. It
// reports false, like Install and Complete, if the partition is no copy.
func (s *Store) Begin(partition int) bool {
	sh := &s.shards[partition]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.pass++
	return sh.role == copied
}

// Install puts the latest states of buckets into a copy. Their levels count from now on,
// so the time they travelled earns no tokens.
func (s *Store) Install(partition int, states []State) bool {
	for i := range states {
		if !s.install(&s.shards[partition], &states[i]) {
			return false
		}
	}
	return true
}

func (s *Store) install(sh *shard, st *State) bool {
	hash := s.hash(st.Name, st.Key)
	sh.mu.Lock()
	if sh.role != copied {
		sh.mu.Unlock()
		return false
	}
	i := sh.find(hash, st.Name, st.Key)
	switch {
	case i >= 0 && (st.Gone || st.Deficit <= 0):
		sh.remove(i)
		s.copies.Add(-1)
	case i >= 0:
		b := &sh.held[i]
		b.rule, b.level, b.pass = unique.Make(rule{st.Limit, st.Version}), st.level(s.now()), sh.pass
	case !st.Gone && st.Deficit > 0:
		sh.mu.Unlock()
		return s.installNew(sh, st, hash)
	}
	sh.mu.Unlock()
	return true
}

func (s *Store) installNew(sh *shard, st *State, hash uint32) bool {
	s.reserve(copied)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.role != copied || sh.find(hash, st.Name, st.Key) >= 0 {
		s.copies.Add(-1)
		return sh.role == copied
	}
	sh.insert(held{
		id: st.Name + "\x00" + st.Key, hash: hash,
		rule: unique.Make(rule{st.Limit, st.Version}), level: st.level(s.now()),
	})
	return true
}

// Complete ends a pass: what it has not brought is dropped.
func (s *Store) Complete(partition int) bool {
	sh := &s.shards[partition]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.role != copied {
		return false
	}
	for i := len(sh.held) - 1; i >= 0; i-- {
		if sh.held[i].pass != sh.pass {
			sh.remove(i)
			s.copies.Add(-1)
		}
	}
	return true
}

// Forget drops a copy.
func (s *Store) Forget(partition int) {
	sh := &s.shards[partition]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.role == copied {
		s.copies.Add(-int64(len(sh.held)))
		sh.held, sh.slots = nil, nil
	}
}

// Len returns how many buckets lie in a partition.
func (s *Store) Len(partition int) int {
	sh := &s.shards[partition]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	return len(sh.held)
}

// Export appends at most so many buckets of a partition, in any role, to the given slice:
// those before the cursor, which is below 0 to begin with, and returns the next cursor, 0
// at the end.
func (s *Store) Export(partition, cursor, most int, into []State) ([]State, int) {
	sh := &s.shards[partition]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if cursor < 0 || cursor > len(sh.held) {
		cursor = len(sh.held)
	}
	now := s.now()
	for ; cursor > 0 && most > 0; most-- {
		cursor--
		into = append(into, sh.held[cursor].state(now))
	}
	return into, cursor
}
