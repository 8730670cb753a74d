package bucket

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestRoles(t *testing.T) {
	l := mustLimit(t, 0, 0, 2)
	check := &Take{Name: "api", Key: "a", Limit: l, Cost: 1}
	s := New(Config{Passive: true})
	steps := []struct {
		name         string
		do           func(int)
		err          error
		keys, copies int
	}{
		{"passive", func(int) {}, ErrNotHeld, 0, 0},
		{"held", s.Hold, nil, 1, 0},
		{"frozen", s.Freeze, ErrFrozen, 1, 0},
		{"released", s.Release, ErrNotHeld, 0, 1},
		{"held again", s.Hold, nil, 1, 0},
		{"released again", s.Release, ErrNotHeld, 0, 1},
		{"forgotten", s.Forget, ErrNotHeld, 0, 0},
	}
	for _, step := range steps {
		step.do(0)
		out := s.Take(check)
		if !errors.Is(out.Err, step.err) || out.Err == nil && !out.Allowed {
			t.Errorf("%s: %+v, want error %v or allowed", step.name, out, step.err)
		}
		if got := s.Stats(); got.Keys != step.keys || got.Copies != step.copies {
			t.Errorf("%s: %d keys and %d copies, want %d and %d", step.name, got.Keys, got.Copies, step.keys, step.copies)
		}
	}
}

func TestGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{MaxGap: 500 * time.Millisecond})
		check := &Take{Name: "api", Key: "a", Limit: mustLimit(t, 0, 0, 9), Cost: 1}
		for _, c := range []struct {
			gap time.Duration
			err error
		}{{500 * time.Millisecond, nil}, {501 * time.Millisecond, ErrFrozen}, {0, nil}} {
			s.Restart()
			time.Sleep(c.gap) // in the bubble
			if ok := s.Tick(); ok != (c.err == nil) {
				t.Errorf("a tick after %v reports %v", c.gap, ok)
			}
			if out := s.Take(check); !errors.Is(out.Err, c.err) {
				t.Errorf("after a gap of %v: %+v, want error %v", c.gap, out, c.err)
			}
		}
	})
}

// move brings what a copy lacks from one store to another, up to so many messages.
func move(from, to *Store, partition, slot, messages int) {
	for range messages {
		c := from.Changes(partition, slot, 3, nil)
		to.Install(partition, c.States)
		if !c.Rest {
			return
		}
	}
}

// A partition goes round three stores under load, by copy, freeze, tail and hold, and
// exactly the burst of each key is allowed.
func TestMovingKeepsTheLimit(t *testing.T) {
	const keys, burst, rounds = 40, 10, 30
	l := mustLimit(t, 0, 0, burst)
	stores := [3]*Store{}
	for i := range stores {
		stores[i] = New(Config{Passive: true})
	}
	stores[0].Hold(0)
	var allowed [keys]atomic.Int64
	var clients sync.WaitGroup
	stop := make(chan struct{})
	for client := range 4 {
		clients.Go(func() {
			r := rand.New(rand.NewPCG(1, uint64(client)))
			for {
				select {
				case <-stop:
					return
				default:
				}
				k := r.IntN(keys)
				for _, s := range stores {
					out := s.Take(&Take{Name: "api", Key: fmt.Sprint(k), Limit: l, Cost: 1})
					if out.Err == nil && out.Allowed {
						allowed[k].Add(1)
					}
				}
			}
		})
	}
	for round := range rounds {
		from, to := stores[round%3], stores[(round+1)%3]
		from.Track(0, round%Slots, true)
		to.Begin(0)
		move(from, to, 0, round%Slots, 1000)
		from.Freeze(0)
		move(from, to, 0, round%Slots, 1<<30)
		to.Complete(0)
		to.Hold(0)
		from.Untrack(0, round%Slots)
		from.Release(0)
	}
	close(stop)
	clients.Wait()
	for k := range keys {
		for range burst {
			for _, s := range stores {
				if out := s.Take(&Take{Name: "api", Key: fmt.Sprint(k), Limit: l, Cost: 1}); out.Err == nil && out.Allowed {
					allowed[k].Add(1)
				}
			}
		}
		if n := allowed[k].Load(); n != burst {
			t.Errorf("key %d: %d allowed, want exactly %d", k, n, burst)
		}
	}
}

// Whatever happens at a holder, a copy that has been told everything is the same.
func TestCopiesFollow(t *testing.T) {
	for seed := range uint64(300) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 2))
			holder := New(Config{MaxKeys: 30, IdleTTL: time.Second})
			copies := [Slots]*Store{New(Config{Passive: true, MaxKeys: 1000}), New(Config{Passive: true, MaxKeys: 1000})}
			limits := []Limit{mustLimit(t, 0, 0, 5), mustLimit(t, 3, time.Second, 5)}
			begin := func(slot int) {
				holder.Track(0, slot, true)
				copies[slot].Begin(0)
			}
			begin(0)
			begin(1)
			whole := [Slots]bool{}
			for range 400 {
				slot := r.IntN(Slots)
				switch n := r.IntN(100); {
				case n < 60:
					k := r.IntN(60)
					holder.Take(&Take{Name: "api", Key: fmt.Sprint(k), Limit: limits[k%2], Cost: int64(r.IntN(4) - 1)})
				case n < 85:
					c := holder.Changes(0, slot, 1+r.IntN(5), nil)
					copies[slot].Install(0, c.States)
					if !c.Rest && !whole[slot] {
						whole[slot] = copies[slot].Complete(0)
					}
				case n < 90:
					holder.Sweep(1)
				case n < 92:
					begin(slot)
					whole[slot] = false
				default:
					time.Sleep(time.Duration(r.IntN(200)) * time.Millisecond) // in the bubble
				}
			}
			for slot, c := range copies {
				move(holder, c, 0, slot, 1<<30)
				if !whole[slot] {
					c.Complete(0)
				}
				same(t, seed, holder, c)
				for p := range holder.Pending(slot) {
					t.Errorf("seed %d: partition %d still has something to tell", seed, p)
				}
			}
		})
	}
}

// same compares what two stores hold, but for buckets that are full by now: one store may
// have dropped them already.
func same(t *testing.T, seed uint64, a, b *Store) {
	t.Helper()
	levels := func(s *Store) map[string]int64 {
		states, _ := s.Export(0, -1, 1<<30, nil)
		m := map[string]int64{}
		for _, st := range states {
			if st.Deficit > 0 {
				m[st.Key] = st.Deficit
			}
		}
		return m
	}
	want, got := levels(a), levels(b)
	for k, v := range want {
		if got[k] != v {
			t.Errorf("seed %d: key %s lacks %d in the copy, %d at the holder", seed, k, got[k], v)
		}
	}
	if len(got) != len(want) {
		t.Errorf("seed %d: the copy has %d buckets, the holder %d", seed, len(got), len(want))
	}
	if n := b.Stats().Copies; n != b.Len(0) {
		t.Errorf("seed %d: %d copies counted, %d there", seed, n, b.Len(0))
	}
}

func TestMerge(t *testing.T) {
	l := mustLimit(t, 0, 0, 10)
	wide := mustLimit(t, 0, 0, 20)
	cases := []struct {
		name               string
		base, mine, theirs int64
		theirLimit         Limit
		version            uint64
		elsewhere          bool  // the base is, where the other history comes from
		remaining          int64 // below 0 is a debt
		handedOn           bool  // the base was, by the node that took over
	}{
		{"both spent beyond the base", 2, 4, 5, l, 0, false, 3, false},
		{"only we did", 2, 4, 2, l, 0, false, 6, false},
		{"only they did", 2, 2, 6, l, 0, false, 4, false},
		{"without a base all counts", 0, 4, 5, l, 0, false, 1, false},
		{"more than there was is a debt", 0, 8, 9, l, 0, false, -7, false},
		{"the debt ends at one burst", 0, 10, 10, l, 0, false, -10, false},
		{"a newer limit counts", 0, 4, 5, wide, 1, false, 11, false},
		{"the other one has the base", 2, 4, 5, l, 0, true, 3, false},
		{"the other one has the base and it alone spent", 2, 2, 6, l, 0, true, 4, false},
		{"both spent beyond a base that was handed on", 2, 4, 5, l, 0, false, 3, true},
		{"nobody spent beyond a base that was handed on", 5, 5, 5, l, 0, false, 5, true},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := New(Config{Passive: true})
			if c.base > 0 {
				s.Install(0, []State{{Name: "api", Key: "a", Limit: l, Deficit: c.base}})
			}
			base := s.Snapshot(0)
			if c.handedOn {
				base = s.Rebase(s.Rebase(nil, s.Based(base)), []State{{Name: "api", Key: "b", Limit: l, Deficit: 7}})
			}
			s.Install(0, []State{{Name: "api", Key: "a", Limit: l, Deficit: c.mine}})
			s.Hold(0)
			s.Track(0, 1, false)
			theirs := []State{{Name: "api", Key: "a", Limit: c.theirLimit, Version: c.version, Deficit: c.theirs}}
			if c.elsewhere {
				s.Beyond(theirs, base)
				base = nil
			}
			s.Merge(0, theirs, base)
			c1 := s.Changes(0, 1, 10, nil)
			if len(c1.States) != 1 {
				t.Fatalf("%d changes to tell, want 1", len(c1.States))
			}
			if got := c.theirLimit.Burst() - c1.States[0].Deficit; got != c.remaining {
				t.Errorf("%d tokens are left, want %d", got, c.remaining)
			}
		})
	}
}

// Copies have a cap of their own, and what a takeover brings above the cap goes again.
func TestCapsOfCopies(t *testing.T) {
	l := mustLimit(t, 0, 0, 5)
	s := New(Config{Passive: true, MaxKeys: 100, Shards: 2})
	for i := range 150 {
		s.Install(1, []State{{Name: "api", Key: fmt.Sprint(i), Limit: l, Deficit: 1}})
	}
	if got := s.Stats(); got.Copies != 100 || got.Keys != 0 || got.Lossy != 50 {
		t.Fatalf("%+v, want 100 copies and 50 dropped", got)
	}
	s.Hold(0)
	for i := range 80 {
		s.Take(&Take{Partition: 0, Name: "api", Key: fmt.Sprint(i), Limit: l, Cost: 1})
	}
	s.Hold(1)
	for i := range 200 {
		s.Take(&Take{Partition: 0, Name: "api", Key: fmt.Sprint("more", i), Limit: l, Cost: 1})
	}
	if got := s.Stats(); got.Keys != 100 || got.Copies != 0 || s.Len(0)+s.Len(1) != 100 {
		t.Errorf("%+v with %d and %d buckets, want 100 keys", got, s.Len(0), s.Len(1))
	}
}

func TestTrackedTakeAllocatesNothing(t *testing.T) {
	s := New(Config{})
	check := &Take{Name: "api", Key: "a", Limit: mustLimit(t, 1000, time.Second, 1<<30), Cost: 1}
	s.Take(check)
	s.Track(0, 0, true)
	into := make([]State, 0, 16)
	s.Changes(0, 0, 16, into)
	if n := testing.AllocsPerRun(1000, func() {
		s.Take(check)
		s.Changes(0, 0, 16, into)
	}); n > 0 {
		t.Errorf("%v allocations for a take and its change", n)
	}
}
