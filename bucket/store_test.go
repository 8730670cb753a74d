package bucket

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// mustLimit returns a limit that the test knows to be good.
func mustLimit(tb testing.TB, tokens int64, per time.Duration, burst int64) Limit {
	tb.Helper()
	l, err := NewLimit(tokens, per, burst)
	if err != nil {
		tb.Fatal(err)
	}
	return l
}

// partition spreads keys over the shards of a test's store.
func partition(s *Store, key string) int {
	sum := 0
	for i := range len(key) {
		sum = sum*31 + int(key[i])
	}
	return (sum%len(s.shards) + len(s.shards)) % len(s.shards)
}

func take(s *Store, l Limit, key string, cost int64) Decision {
	return s.Take(&Take{Partition: partition(s, key), Name: "api", Key: key, Limit: l, Cost: cost}).Decision
}

// check fails the test if the store contradicts itself.
func (s *Store) check(tb testing.TB) {
	tb.Helper()
	total := 0
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		total += len(sh.held)
		used := 0
		for _, slot := range sh.slots {
			if slot.pos != 0 {
				used++
			}
		}
		if used != len(sh.held) || 4*used > 3*len(sh.slots) {
			tb.Errorf("shard %d: %d buckets, %d of %d slots used", i, len(sh.held), used, len(sh.slots))
		}
		for at := range sh.held {
			name, key, _ := strings.Cut(sh.held[at].id, "\x00")
			if found := sh.find(sh.held[at].hash, name, key); found != at {
				tb.Errorf("shard %d: %q is at %d and found at %d", i, sh.held[at].id, at, found)
			}
		}
		sh.mu.Unlock()
	}
	if got := s.Stats().Keys; got != total {
		tb.Errorf("the store counts %d buckets and holds %d", got, total)
	}
}

// The store decides as a plain map of buckets would, whatever is inserted and removed.
func TestStoreIsAMapOfBuckets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		rng := rand.New(rand.NewPCG(seed, 0))
		s := New(Config{Shards: 3})
		l := mustLimit(t, 1, time.Second, 3)
		type plain struct {
			tokens float64
			at     time.Time
		}
		buckets := map[string]*plain{}
		for step := range 30_000 {
			key := fmt.Sprintf("key-%d", rng.IntN(500))
			b := buckets[key]
			if b == nil {
				b = &plain{tokens: 3, at: time.Now()}
				buckets[key] = b
			}
			b.tokens, b.at = min(3, b.tokens+time.Since(b.at).Seconds()), time.Now()
			want := b.tokens >= 1
			if want {
				b.tokens--
			}
			if got := take(s, l, key, 1).Allowed; got != want {
				t.Fatalf("step %d: %s allowed = %v, want %v", step, key, got, want)
			}
			if rng.IntN(10) == 0 {
				time.Sleep(time.Duration(rng.IntN(4)) * 250 * time.Millisecond) // sums of these are exact
				s.Sweep(1)
			}
		}
		s.check(t)
	})
}

func TestFullBucketsAreNotHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{Shards: 7})
		l := mustLimit(t, 1, time.Second, 2)
		for i := range 1000 {
			key := fmt.Sprint(i)
			take(s, l, key, 0)  // only looks
			take(s, l, key, -5) // gives back to a full bucket
			take(s, l, key, 3)  // can never be allowed
		}
		if got := s.Stats(); got != (Stats{}) {
			t.Errorf("checks that leave buckets full: %+v, want nothing held", got)
		}
		for i := range 1000 {
			take(s, l, fmt.Sprint(i), 1)
		}
		time.Sleep(time.Second - 1)
		if n := s.Sweep(7); n != 0 {
			t.Errorf("%d buckets dropped a nanosecond before they were full", n)
		}
		time.Sleep(time.Nanosecond)
		if n := s.Sweep(7); n != 1000 {
			t.Errorf("%d buckets dropped when they were full, want 1000", n)
		}
		if got, want := s.Stats(), (Stats{Full: 1000}); got != want {
			t.Errorf("counted %+v, want %+v", got, want)
		}
		s.check(t)
	})
}

func TestSweepGoesRoundAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{Shards: 4093})
		l := mustLimit(t, 1, time.Second, 2)
		for i := range 10_000 {
			take(s, l, fmt.Sprint(i), 1)
		}
		s.Start()
		time.Sleep(time.Second + sweepRound + 2*sweepTick)
		if got := s.Stats().Keys; got != 0 {
			t.Errorf("%d full buckets are still held after a round", got)
		}
		for range 2 {
			if err := s.Close(t.Context()); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestIdleBucketsThatNeverRefill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{IdleTTL: time.Hour})
		never := mustLimit(t, 0, 0, 2)
		take(s, never, "idle", 1)
		take(s, never, "asked", 2)
		for range 4 {
			time.Sleep(30 * time.Minute)
			if take(s, never, "asked", 1).Allowed { // denied, but not silent
				t.Fatal("a bucket that never refills gave a token")
			}
			s.Sweep(1)
		}
		if got, want := s.Stats(), (Stats{Keys: 1, Lossy: 1}); got != want {
			t.Errorf("counted %+v, want %+v", got, want)
		}
		if take(s, never, "asked", 1).Allowed {
			t.Error("the bucket that was asked all the time is full again")
		}
		if d := take(s, never, "idle", 2); !d.Allowed {
			t.Error("the idle bucket is still held after its time")
		}
	})
}

// A flood of new keys evicts itself: the cap holds at every moment, nobody is refused for
// want of room, and a busy client stays denied.
func TestFloodAgainstTheCap(t *testing.T) {
	for _, c := range []struct {
		name   string
		tokens int64
		per    time.Duration
	}{{"refilling", 1, time.Minute}, {"never refilling", 0, 0}} {
		t.Run(c.name, func(t *testing.T) {
			const most, each = 4000, 4000
			s := New(Config{Shards: 4093, MaxKeys: most})
			l := mustLimit(t, c.tokens, c.per, 20)
			if !take(s, l, "busy", 20).Allowed {
				t.Fatal("a full bucket was denied")
			}
			var wg sync.WaitGroup
			var refused, over atomic.Int64
			for w := range 4 {
				wg.Go(func() {
					for i := range each {
						if !take(s, l, fmt.Sprintf("flood-%d-%d", w, i), 1).Allowed {
							refused.Add(1)
						}
						if s.Stats().Keys > most {
							over.Add(1)
						}
						if i%100 == 0 && take(s, l, "busy", 1).Allowed {
							t.Error("the busy client's empty bucket was evicted")
							return
						}
					}
				})
			}
			wg.Wait()
			if refused.Load() > 0 || over.Load() > 0 {
				t.Errorf("%d new clients refused, %d times over the cap", refused.Load(), over.Load())
			}
			if got := s.Stats(); got.Keys != most || got.Full+got.Lossy != 4*each+1-most {
				t.Errorf("%+v held and dropped, want %d and %d", got, most, 4*each+1-most)
			}
			s.check(t)
		})
	}
}

func TestCapOfOne(t *testing.T) {
	s := New(Config{Shards: 16, MaxKeys: 1})
	l := mustLimit(t, 0, 0, 1)
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := range 500 {
				take(s, l, fmt.Sprintf("%d-%d", w, i), 1)
			}
		})
	}
	wg.Wait()
	if got := s.Stats().Keys; got != 1 {
		t.Errorf("%d buckets held, want 1", got)
	}
	s.check(t)
}

// Of one bucket of 20, a hundred checks at once get exactly 20, however the first of
// them race to make the bucket.
func TestExactlyTheBurst(t *testing.T) {
	s := New(Config{Shards: 11})
	l := mustLimit(t, 0, 0, 20)
	for round := range 300 {
		key := fmt.Sprint(round)
		var allowed atomic.Int64
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				if take(s, l, key, 1).Allowed {
					allowed.Add(1)
				}
			})
		}
		wg.Wait()
		if got := allowed.Load(); got != 20 {
			t.Fatalf("round %d: %d allowed, want exactly 20", round, got)
		}
	}
	s.check(t)
}

func TestBucketsAreTheirLimitsAndKeys(t *testing.T) {
	s := New(Config{})
	l := mustLimit(t, 0, 0, 1)
	ids := [][2]string{{"a", "bc"}, {"ab", "c"}, {"a", "b\x00c"}, {"a", ""}, {"b", "bc"}, {"a", "BC"}}
	for _, id := range ids {
		if d := s.Take(&Take{Name: id[0], Key: id[1], Limit: l, Cost: 1}); !d.Allowed {
			t.Errorf("%q shares its bucket with another", id)
		}
	}
	if got := s.Stats().Keys; got != len(ids) {
		t.Errorf("%d buckets held, want %d", got, len(ids))
	}
}

// Removing from an index with open addressing must leave every other entry findable.
func TestIndexKeepsEntriesFindable(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	var s shard
	ids := map[string]uint32{}
	for step := range 20_000 {
		if rng.IntN(2+step/5000) == 0 || len(ids) == 0 {
			id := fmt.Sprintf("n\x00%d", step)
			// Few different hashes, near both ends, so that runs are long and wrap around.
			hash := uint32(rng.IntN(12)) - 6
			s.insert(held{id: id, hash: hash})
			ids[id] = hash
		} else {
			at := rng.IntN(len(s.held))
			delete(ids, s.held[at].id)
			s.remove(at)
		}
		if step%97 != 0 {
			continue
		}
		for id, hash := range ids {
			if at := s.find(hash, "n", id[2:]); at < 0 || s.held[at].id != id {
				t.Fatalf("step %d: %q is not found", step, id)
			}
		}
	}
}

func TestTakeAllocatesNothing(t *testing.T) {
	s := New(Config{Shards: 4093})
	l := mustLimit(t, 100, time.Minute, 20)
	check := Take{Name: "api", Key: "203.0.113.9", Limit: l, Cost: 1}
	if n := testing.AllocsPerRun(1000, func() { s.Take(&check) }); n != 0 {
		t.Errorf("a check of a bucket that is held allocates %v times", n)
	}
}

func benchmarkKeys(n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("client-%017d", i)
	}
	return keys
}

// One decision of one bucket, with the clock read inside.
func BenchmarkTakeOneKey(b *testing.B) {
	s := New(Config{Shards: 4093})
	t := Take{Name: "api", Key: "203.0.113.9", Limit: mustLimit(b, 100, time.Minute, 20), Cost: 1}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		mine := t
		for pb.Next() {
			s.Take(&mine)
		}
	})
}

// Decisions of a million buckets, at random.
func BenchmarkTakeMillionKeys(b *testing.B) {
	s := New(Config{Shards: 4093, MaxKeys: 2_000_000})
	keys := benchmarkKeys(1_000_000)
	l := mustLimit(b, 1, time.Hour, 1000)
	for _, k := range keys {
		take(s, l, k, 1)
	}
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		rng := rand.New(rand.NewPCG(rand.Uint64(), 0))
		t := Take{Name: "api", Limit: l, Cost: 1}
		for pb.Next() {
			t.Key = keys[rng.IntN(len(keys))]
			t.Partition = partition(s, t.Key)
			s.Take(&t)
		}
	})
}

// A new key against a store that is at its cap, so that each one evicts another.
func BenchmarkTakeAtTheCap(b *testing.B) {
	s := New(Config{Shards: 4093, MaxKeys: 100_000})
	l := mustLimit(b, 1, time.Hour, 20)
	keys := benchmarkKeys(300_000)
	i := 0
	for b.Loop() {
		take(s, l, keys[i%len(keys)], 1)
		i++
	}
}
