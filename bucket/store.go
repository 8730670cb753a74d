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

	Passive bool          // no partition decides until Hold
	MaxGap  time.Duration // without a Tick, after which nothing is decided; 0 is for ever
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

	keys   counted // places in use by what is held, above maxKeys only just after Hold
	copies counted // places in use by copies, never above maxKeys
	frozen counted // partitions
	maxGap int64
	ticked atomic.Int64
	// pending has a bit for each partition whose copy in a slot lacks something.
	pending [Slots][]atomic.Uint64

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
	s := &Store{
		maxKeys: int64(c.MaxKeys),
		idleTTL: int64(c.IdleTTL),
		start:   time.Now(),
		seed:    maphash.MakeSeed(),
		shards:  make([]shard, c.Shards),
		maxGap:  int64(c.MaxGap),
		stop:    make(chan struct{}),
	}
	for slot := range s.pending {
		s.pending[slot] = make([]atomic.Uint64, c.Shards/64+1)
	}
	if c.Passive {
		for i := range s.shards {
			s.shards[i].role = copied
		}
	}
	return s
}

// counted is a number of places in use.
type counted = atomic.Int64

// now is the store's clock: nanoseconds of monotonic time since the store was made.
func (s *Store) now() int64 { return int64(time.Since(s.start)) }

func (s *Store) hash(name, key string) uint32 {
	// Both halves are mixed, since the name alone is the same for very many buckets.
	h := maphash.String(s.seed, key)
	hi, lo := bits.Mul64(h^maphash.String(s.seed, name), 0x9e3779b97f4a7c15)
	return uint32(hi ^ lo)
}

// Take decides one check and charges it. The error is ErrNotHeld or ErrFrozen: nothing was
// decided then.
func (s *Store) Take(t *Take) Outcome {
	hash := s.hash(t.Name, t.Key)
	sh := &s.shards[t.Partition]
	sh.mu.Lock()
	// The clock is read inside the lock, so that no check sees a moment before one that
	// was decided earlier.
	now := s.now()
	if err := s.refuses(sh, now); err != nil {
		sh.mu.Unlock()
		return Outcome{Err: err}
	}
	if i := sh.find(hash, t.Name, t.Key); i >= 0 {
		d := sh.decide(i, t, now)
		sh.mu.Unlock()
		return Outcome{Decision: d}
	}
	sh.mu.Unlock()
	return s.takeNew(t, hash)
}

// takeNew decides a check of a bucket that was not held. It first takes a place for it
// without any lock, then looks again, since another check may have been faster.
func (s *Store) takeNew(t *Take, hash uint32) Outcome {
	if !t.Charge && (t.Cost <= 0 || t.Cost > t.Limit.burst) {
		// The bucket stays full, so there is nothing to hold.
		v := full(t.Limit, 0)
		return Outcome{Decision: v.take(t.Limit, t.Cost)}
	}
	fresh := held{id: t.Name + "\x00" + t.Key, hash: hash, rule: unique.Make(rule{t.Limit, t.Version})}
	s.reserve(holding)
	sh := &s.shards[t.Partition]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	now := s.now()
	if err := s.refuses(sh, now); err != nil {
		s.keys.Add(-1)
		return Outcome{Err: err}
	}
	if i := sh.find(hash, t.Name, t.Key); i >= 0 {
		s.keys.Add(-1)
		return Outcome{Decision: sh.decide(i, t, now)}
	}
	fresh.level = full(t.Limit, now)
	sh.insert(fresh)
	return Outcome{Decision: sh.decide(len(sh.held)-1, t, now)}
}

// reserve takes one of the places for buckets that are held, or for copies, making one
// free if none is. When there are too many, it makes another one free.
func (s *Store) reserve(r role) {
	places := s.places(r)
	for {
		n := places.Load()
		if n < s.maxKeys {
			if places.CompareAndSwap(n, n+1) {
				return
			}
			continue
		}
		switch s.evict(r) {
		case nothing:
			places.Add(1) // all that could go is frozen for a moment
			return
		case tooLate:
			continue
		}
		if n > s.maxKeys && s.evict(r) == evicted {
			places.Add(-1)
		}
		return // the place of the evicted bucket is ours
	}
}

// Stats counts what the store holds and has dropped.
type Stats struct {
	Keys   int    // buckets held
	Copies int    // buckets of other nodes' partitions
	Full   uint64 // buckets dropped that were full: nothing was lost
	Lossy  uint64 // buckets dropped that were not: at the cap, or silent for the idle time
}

// Stats returns the store's counts.
func (s *Store) Stats() Stats {
	return Stats{Keys: int(s.keys.Load()), Copies: int(s.copies.Load()), Full: s.full.Load(), Lossy: s.lossy.Load()}
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
