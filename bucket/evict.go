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

// evict drops the least valuable of a few buckets sampled over random shards, locking
// one shard at a time, and reports whether it did. The place in use stays counted: it
// belongs to the caller.
func (s *Store) evict() bool {
	var least victim
	for range sampled {
		v, ok := s.sample()
		if !ok {
			return false
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
	if i < 0 {
		return false
	}
	b := &sh.held[i]
	s.count(b.fullAt(b.rule.Value().Limit) <= s.now())
	sh.remove(i)
	return true
}

// sample returns a random bucket, of the first shard that has any from a random one on.
func (s *Store) sample() (victim, bool) {
	first := rand.IntN(len(s.shards))
	for i := range s.shards {
		at := (first + i) % len(s.shards)
		if v, ok := s.shards[at].sample(); ok {
			v.shard = at
			return v, true
		}
	}
	return victim{}, false
}

func (s *shard) sample() (victim, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.held) == 0 {
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
