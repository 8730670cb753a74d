package bucket

import (
	"sync"
	"unique"
)

// A rule is a limit with its version. Buckets share their rule, so that holding it costs
// a bucket one word.
type rule struct {
	Limit
	version uint64
}

// held is one bucket in a shard.
type held struct {
	id    string // the limit's name, a zero byte, the key
	level level
	rule  unique.Handle[rule]
	hash  uint32
	dirty uint8 // by slot, whether the copy there is to be told of a change
	pass  uint8 // of a copy, that brought it last
}

// decide answers one check of the bucket at a position, charges it and notes a change.
func (s *shard) decide(i int, t *Take, now int64) Decision {
	b := &s.held[i]
	before := b.rule
	d := b.decide(t, now)
	if s.tracked() && (t.Charge || d.Allowed && t.Cost != 0 || b.rule != before) {
		s.note(i, now)
	}
	return d
}

func (b *held) decide(t *Take, now int64) Decision {
	l := b.adopt(t, now)
	if t.Charge {
		b.level.charge(l, t.Cost)
		return b.level.take(l, 0)
	}
	return b.level.take(l, t.Cost)
}

// adopt makes b follow the rule of t if that is newer, keeping the deficit, and returns
// the limit that decides. Up to now the bucket refills by the old rule.
func (b *held) adopt(t *Take, now int64) Limit {
	r := b.rule.Value()
	b.level.refill(r.Limit, now)
	if t.Version <= r.version {
		return r.Limit
	}
	if t.Limit != r.Limit {
		deficit := t.Limit.convert(r.capacity()-b.level.units, r.Limit)
		b.level.units = t.Limit.capacity() - deficit
	}
	b.rule = unique.Make(rule{t.Limit, t.Version})
	return t.Limit
}

// slot is a place in the index: the hash of a bucket and its position in the shard's
// slice plus one, 0 when the slot is free. Keeping the hash here spares a look at every
// bucket that is passed on the way.
type slot struct{ hash, pos uint32 }

const minSlots = 8

// shard holds the buckets of one partition.
type shard struct {
	mu    sync.Mutex // guards all below
	slots []slot     // a power of two long, at most three quarters used
	held  []held

	role  role
	pass  uint8  // of a copy, the present one
	seq   uint64 // of the last change
	sinks [Slots]*sink
}

// find returns the position of the bucket of (name, key), or -1.
func (s *shard) find(hash uint32, name, key string) int {
	if len(s.slots) == 0 {
		return -1
	}
	mask := uint32(len(s.slots) - 1)
	for i := hash & mask; s.slots[i].pos != 0; i = (i + 1) & mask {
		if at := int(s.slots[i].pos) - 1; s.slots[i].hash == hash && sameID(s.held[at].id, name, key) {
			return at
		}
	}
	return -1
}

func sameID(id, name, key string) bool {
	n := len(name)
	return len(id) == n+1+len(key) && id[:n] == name && id[n] == 0 && id[n+1:] == key
}

// insert adds a bucket that find did not find.
func (s *shard) insert(b held) {
	if 4*(len(s.held)+1) > 3*len(s.slots) {
		s.rehash(max(2*len(s.slots), minSlots))
	}
	if len(s.held) == cap(s.held) {
		// An eighth at a time: doubling would leave a third of the memory unused.
		s.move(len(s.held) + len(s.held)/8 + 4)
	}
	b.pass = s.pass
	s.held = append(s.held, b)
	s.link(b.hash, uint32(len(s.held)))
}

// remove drops the bucket at position i and moves the last one into its place.
func (s *shard) remove(i int) {
	s.unlink(s.slotOf(i))
	last := len(s.held) - 1
	if i != last {
		s.slots[s.slotOf(last)].pos = uint32(i + 1)
		s.held[i] = s.held[last]
	}
	s.held[last] = held{}
	s.held = s.held[:last]
	switch {
	case last == 0:
		s.held, s.slots = nil, nil
	case 4*last < cap(s.held) && len(s.slots) > minSlots:
		s.move(last + last/8 + 4)
		s.rehash(len(s.slots) / 2)
	}
}

func (s *shard) move(capacity int) {
	moved := make([]held, len(s.held), capacity)
	copy(moved, s.held)
	s.held = moved
}

func (s *shard) rehash(slots int) {
	s.slots = make([]slot, slots)
	for i := range s.held {
		s.link(s.held[i].hash, uint32(i+1))
	}
}

func (s *shard) link(hash, pos uint32) {
	mask := uint32(len(s.slots) - 1)
	i := hash & mask
	for s.slots[i].pos != 0 {
		i = (i + 1) & mask
	}
	s.slots[i] = slot{hash, pos}
}

// slotOf returns the slot of the bucket at position i.
func (s *shard) slotOf(i int) uint32 {
	mask := uint32(len(s.slots) - 1)
	at := s.held[i].hash & mask
	for s.slots[at].pos != uint32(i+1) {
		at = (at + 1) & mask
	}
	return at
}

// unlink frees a slot and moves back what had been pushed past it, so that no search
// ends early and no markers of deleted entries pile up.
func (s *shard) unlink(gap uint32) {
	mask := uint32(len(s.slots) - 1)
	for i := (gap + 1) & mask; s.slots[i].pos != 0; i = (i + 1) & mask {
		// The entry may move into the gap unless its own place lies after the gap.
		if (i-s.slots[i].hash)&mask >= (i-gap)&mask {
			s.slots[gap] = s.slots[i]
			gap = i
		}
	}
	s.slots[gap] = slot{}
}
