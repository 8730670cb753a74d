package bucket

import (
	"math"
	"math/rand/v2"
	"strings"
)

// sampled is how many buckets eviction looks at before it drops one.
const sampled = 8

// A victim is a bucket that eviction may drop, as it was when it was looked at.
type victim struct {
	shard   int
	id      string
	hash    uint32
	fullAt  int64   // on the store's clock; the largest integer when it never refills
	deficit float64 // as a part of the capacity
	at      int64
}

// before reports whether dropping v loses less than dropping w: the one that would be
// full soonest goes, of two that never refill the one that misses less, and of two alike
// the one that was silent longer.
func (v victim) before(w victim) bool {
	if v.fullAt != w.fullAt {
		return v.fullAt < w.fullAt
	}
	if v.deficit != w.deficit {
		return v.deficit < w.deficit
	}
	return v.at < w.at
}

// An eviction is what came of trying to drop a bucket.
type eviction int

const (
	evicted eviction = iota
	tooLate          // the bucket had gone already
	nothing          // all there is is frozen
)

// evict drops the least valuable of a few buckets sampled over random shards in a role,
// locking one shard at a time, and says what came of it. The place in use stays counted: it
// belongs to the caller.
func (s *Store) evict(r role) eviction {
	var least victim
	for range sampled {
		v, ok := s.sample(r)
		if !ok && s.frozen.Load() > 0 {
			return nothing
		} else if !ok {
			return tooLate // whoever has the places has not used them yet
		}
		if least.id == "" || v.before(least) {
			least = v
		}
	}
	name, key, _ := strings.Cut(least.id, "\x00")
	sh := &s.shards[least.shard]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	i := sh.find(least.hash, name, key)
	if i < 0 || sh.role != r {
		return tooLate
	}
	b := &sh.held[i]
	now := s.now()
	s.count(b.fullAt(b.rule.Value().Limit) <= now)
	sh.note(i, now)
	sh.remove(i)
	return evicted
}

// sample returns a random bucket, of the first shard in a role that has any from a random
// one on.
func (s *Store) sample(r role) (victim, bool) {
	first := rand.IntN(len(s.shards))
	for i := range s.shards {
		at := (first + i) % len(s.shards)
		if v, ok := s.shards[at].sample(r); ok {
			v.shard = at
			return v, true
		}
	}
	return victim{}, false
}

func (s *shard) sample(r role) (victim, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.held) == 0 || s.role != r {
		return victim{}, false
	}
	b := &s.held[rand.IntN(len(s.held))]
	l := b.rule.Value().Limit
	v := victim{id: b.id, hash: b.hash, fullAt: b.fullAt(l), at: b.level.at}
	if c := l.capacity(); c > 0 {
		v.deficit = 1 - float64(b.level.units)/float64(c)
	}
	return v, true
}

// fullAt is when the bucket will be full on the store's clock, or the largest integer.
func (b *held) fullAt(l Limit) int64 {
	in := int64(l.wait(l.capacity() - b.level.units))
	if in < 0 || in > math.MaxInt64-b.level.at {
		return math.MaxInt64
	}
	return b.level.at + in
}

// count notes that a bucket was dropped.
func (s *Store) count(lossless bool) {
	if lossless {
		s.full.Add(1)
	} else {
		s.lossy.Add(1)
	}
}
