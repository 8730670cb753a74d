package bucket

import (
	"iter"
	"math/bits"
	"strings"
	"sync/atomic"
	"time"
)

// Slots is how many copies of a partition can be kept up to date at once.
const Slots = 2

// A sink notes what a copy of a shard lacks: at first everything, by a pass from the last
// bucket to the first, and what changes. (Backwards, since removing moves the last bucket
// into the gap: a bucket may be sent twice then, but none is missed. New buckets are
// changes.) It belongs to the shard and its lock.
type sink struct {
	unseen  int      // buckets at the front of the slice that the pass has not reached
	changed []string // ids of buckets that have changed or were dropped, in order
	since   int64    // when the first of them changed
	pending *atomic.Uint64
	bit     uint64 // in pending, set while there is something to send
}

// Track begins to note what a copy of a held partition lacks. Whole says that it lacks
// everything; otherwise it has what there is at this moment.
func (s *Store) Track(partition, slot int, whole bool) {
	sh := &s.shards[partition]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.untrack(slot)
	k := &sink{pending: &s.pending[slot][partition/64], bit: 1 << (partition % 64)}
	sh.sinks[slot] = k
	if whole {
		k.unseen = len(sh.held)
	}
	k.pending.Or(k.bit) // even if nothing lacks, there is a first Seq to tell of
}

// Untrack ends what Track began.
func (s *Store) Untrack(partition, slot int) {
	sh := &s.shards[partition]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.untrack(slot)
}

func (s *shard) untrack(slot int) {
	k := s.sinks[slot]
	if k == nil {
		return
	}
	k.pending.And(^k.bit)
	s.sinks[slot] = nil
	for i := range s.held {
		s.held[i].dirty &^= 1 << slot
	}
}

// Pending yields the partitions whose copy in a slot lacks something.
func (s *Store) Pending(slot int) iter.Seq[int] {
	return func(yield func(int) bool) {
		for i := range s.pending[slot] {
			for word := s.pending[slot][i].Load(); word != 0; word &= word - 1 {
				if !yield(64*i + bits.TrailingZeros64(word)) {
					return
				}
			}
		}
	}
}

// Changes is what a copy has to be told.
type Changes struct {
	States []State
	Seq    uint64        // number of the last change of the partition
	Rest   bool          // there is more to tell; without it, the copy is as of Seq
	Since  time.Duration // age of the oldest change that is told, 0 for a pass
}

// Changes moves at most so many buckets that the copy in a slot lacks into the given
// slice. They count as told.
func (s *Store) Changes(partition, slot, most int, into []State) Changes {
	sh := &s.shards[partition]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	k := sh.sinks[slot]
	if k == nil {
		return Changes{States: into}
	}
	now := s.now()
	c := Changes{Seq: sh.seq}
	for k.unseen = min(k.unseen, len(sh.held)); k.unseen > 0 && most > 0; most-- {
		k.unseen--
		into = append(into, sh.held[k.unseen].state(now))
	}
	told := min(most, len(k.changed))
	if told > 0 {
		c.Since = time.Duration(now - k.since)
	}
	for _, id := range k.changed[:told] {
		name, key, _ := strings.Cut(id, "\x00")
		i := sh.find(s.hash(name, key), name, key)
		if i < 0 {
			into = append(into, State{Name: name, Key: key, Gone: true})
			continue
		}
		sh.held[i].dirty &^= 1 << slot
		into = append(into, sh.held[i].state(now))
	}
	k.changed = append(k.changed[:0], k.changed[told:]...)
	c.States, c.Rest = into, k.unseen > 0 || len(k.changed) > 0
	if !c.Rest {
		k.pending.And(^k.bit)
	}
	return c
}

// note tells the sinks of a shard that the bucket at a position has changed or goes.
func (s *shard) note(i int, now int64) {
	s.seq++
	for slot, k := range s.sinks {
		if k == nil || s.held[i].dirty&(1<<slot) != 0 {
			continue
		}
		s.held[i].dirty |= 1 << slot
		if len(k.changed) == 0 {
			k.since = now
			k.pending.Or(k.bit)
		}
		k.changed = append(k.changed, s.held[i].id)
	}
}

// tracked reports whether there is any copy to be told.
func (s *shard) tracked() bool { return s.sinks[0] != nil || s.sinks[1] != nil }
