package bucket

import (
	"cmp"
	"context"
	"hash/maphash"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"
	"unique"
)

// Config says how a Store is built. Zero values stand for the defaults.
type Config struct {
	Shards  int           // number of partitions; 1 unless given
	MaxKeys int           // buckets held at the most; 1 000 000
	IdleTTL time.Duration // silence after which a bucket that never refills is dropped; 1 h
}

func (c Config) withDefaults() Config {
	c.Shards = cmp.Or(c.Shards, 1)
	c.MaxKeys = cmp.Or(c.MaxKeys, 1_000_000)
	c.IdleTTL = cmp.Or(c.IdleTTL, time.Hour)
	return c
}

// Store holds buckets in memory. All its methods may be called at once.
type Store struct {
	maxKeys int64
	idleTTL int64 // nanoseconds
	start   time.Time
	seed    maphash.Seed
	shards  []shard

	keys   atomic.Int64 // places in use, never above maxKeys
	full   atomic.Uint64
	lossy  atomic.Uint64
	cursor atomic.Uint64 // of the sweep

	stop     chan struct{}
	stopOnce sync.Once
	running  sync.WaitGroup
}

// New returns an empty store. Start runs its sweep.
func New(c Config) *Store {
	c = c.withDefaults()
	return &Store{
		maxKeys: int64(c.MaxKeys),
		idleTTL: int64(c.IdleTTL),
		start:   time.Now(),
		seed:    maphash.MakeSeed(),
		shards:  make([]shard, c.Shards),
		stop:    make(chan struct{}),
	}
}

// now is the store's clock: nanoseconds of monotonic time since the store was made.
func (s *Store) now() int64 { return int64(time.Since(s.start)) }

func (s *Store) hash(name, key string) uint32 {
	// Both halves are mixed, since the name alone is the same for very many buckets.
	h := maphash.String(s.seed, key)
	hi, lo := bits.Mul64(h^maphash.String(s.seed, name), 0x9e3779b97f4a7c15)
	return uint32(hi ^ lo)
}

// Take decides one check and charges it.
func (s *Store) Take(t *Take) Decision {
	hash := s.hash(t.Name, t.Key)
	sh := &s.shards[t.Partition]
	sh.mu.Lock()
	if i := sh.find(hash, t.Name, t.Key); i >= 0 {
		// The clock is read inside the lock, so that no check sees a moment before one that
		// was decided earlier.
		d := sh.held[i].decide(t, s.now())
		sh.mu.Unlock()
		return d
	}
	sh.mu.Unlock()
	return s.takeNew(t, hash)
}

// takeNew decides a check of a bucket that was not held. It first takes a place for it
// without any lock, then looks again, since another check may have been faster.
func (s *Store) takeNew(t *Take, hash uint32) Decision {
	if !t.Charge && (t.Cost <= 0 || t.Cost > t.Limit.burst) {
		// The bucket stays full, so there is nothing to hold.
		v := full(t.Limit, 0)
		return v.take(t.Limit, t.Cost)
	}
	fresh := held{id: t.Name + "\x00" + t.Key, hash: hash, rule: unique.Make(rule{t.Limit, t.Version})}
	s.reserve()
	sh := &s.shards[t.Partition]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if i := sh.find(hash, t.Name, t.Key); i >= 0 {
		s.keys.Add(-1)
		return sh.held[i].decide(t, s.now())
	}
	now := s.now()
	fresh.level = full(t.Limit, now)
	d := fresh.decide(t, now)
	sh.insert(fresh)
	return d
}

// reserve takes one of the places for buckets, making one free if none is.
func (s *Store) reserve() {
	for {
		n := s.keys.Load()
		if n < s.maxKeys {
			if s.keys.CompareAndSwap(n, n+1) {
				return
			}
			continue
		}
		if s.evict() {
			return // the place of the evicted bucket is ours
		}
	}
}

// Stats counts what the store holds and has dropped.
type Stats struct {
	Keys  int    // buckets held
	Full  uint64 // buckets dropped that were full: nothing was lost
	Lossy uint64 // buckets dropped that were not: at the cap, or silent for the idle time
}

// Stats returns the store's counts.
func (s *Store) Stats() Stats {
	return Stats{Keys: int(s.keys.Load()), Full: s.full.Load(), Lossy: s.lossy.Load()}
}

// Start runs the sweep until Close.
func (s *Store) Start() {
	s.running.Go(func() {
		tick := time.NewTicker(sweepTick)
		defer tick.Stop()
		perTick := len(s.shards)/int(sweepRound/sweepTick) + 1
		for {
			select {
			case <-s.stop:
				return
			case <-tick.C:
				s.Sweep(perTick)
			}
		}
	})
}

// Close ends the sweep and waits for it. It may be called twice.
func (s *Store) Close(context.Context) error {
	s.stopOnce.Do(func() { close(s.stop) })
	s.running.Wait()
	return nil
}

// MaxKeys returns how many buckets are held at the most.
func (s *Store) MaxKeys() int { return int(s.maxKeys) }

// Shards returns the number of partitions.
func (s *Store) Shards() int { return len(s.shards) }
