package bucket

import "errors"

// Errors of a Take that decided nothing and charged nothing.
var (
	// ErrNotHeld says that the partition is decided elsewhere: what lies here is a copy.
	ErrNotHeld = errors.New("the partition is not held here")
	// ErrFrozen says that the partition decides nothing for a moment.
	ErrFrozen = errors.New("the partition is frozen")
)

// role is what a shard does. Only one that is held decides.
type role uint8

const (
	holding role = iota
	frozen       // decides nothing and does not change, but for a merge
	copied       // somebody else decides; what lies here, if anything, is a copy
)

// Hold makes a partition decide, with what lies there.
func (s *Store) Hold(partition int) { s.setRole(partition, holding) }

// Freeze makes checks of a partition wait, and keeps its buckets as they are.
func (s *Store) Freeze(partition int) { s.setRole(partition, frozen) }

// Release makes what a partition holds a copy.
func (s *Store) Release(partition int) { s.setRole(partition, copied) }

func (s *Store) setRole(partition int, r role) {
	sh := &s.shards[partition]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if n := int64(len(sh.held)); (sh.role == copied) != (r == copied) {
		if r == copied {
			s.keys.Add(-n)
			s.copies.Add(n)
		} else {
			s.copies.Add(-n)
			s.keys.Add(n)
		}
	}
	if sh.role == frozen && r != frozen {
		s.frozen.Add(-1)
	} else if sh.role != frozen && r == frozen {
		s.frozen.Add(1)
	}
	sh.role = r
}

// Tick says that this process runs. Without a tick for MaxGap nothing is decided, since
// others may believe that this process has ended; Tick then reports false, and only Restart
// lets the store decide again.
func (s *Store) Tick() bool {
	now := s.now()
	if s.stoodStill(now) {
		return false
	}
	// Should the process stand still right here, the moment stored is the one before.
	s.ticked.Store(now)
	return true
}

// Restart lets the store decide again after it has stood still.
func (s *Store) Restart() { s.ticked.Store(s.now()) }

func (s *Store) stoodStill(now int64) bool {
	return s.maxGap > 0 && now-s.ticked.Load() > s.maxGap
}

// refuses returns why a shard, which the caller has locked, does not decide now, or nil.
func (s *Store) refuses(sh *shard, now int64) error {
	switch {
	case sh.role == copied:
		return ErrNotHeld
	case sh.role == frozen, s.stoodStill(now):
		return ErrFrozen
	}
	return nil
}

// places is the count of buckets that a shard's role belongs to.
func (s *Store) places(r role) *counted {
	if r == copied {
		return &s.copies
	}
	return &s.keys
}
