package redisstore

import (
	"math/rand/v2"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tokenring/tokenring/bucket"
	"github.com/tokenring/tokenring/test/decisions"
	"github.com/tokenring/tokenring/test/redistest"
)

func TestDecisions(t *testing.T) {
	rs := redistest.Start(t)
	client := rs.Client()
	s := newStore(t, rs.URL())
	freeze(t, s)
	for n, c := range decisions.Cases() {
		t.Run(c.Name, func(t *testing.T) {
			for i, step := range c.Steps {
				take, err := step.Take("api", strconv.Itoa(n))
				if err != nil {
					t.Fatalf("step %d: %v", i, err)
				}
				age(t, client, take, step.After)
				if got := mustTake(t, s, take); got != step.Want {
					t.Fatalf("step %d: got %+v, want %+v", i, got, step.Want)
				}
			}
		})
	}
}

// A history is what one bucket was asked and what Redis answered.
type history []struct {
	after time.Duration
	take  bucket.Take
	got   bucket.Decision
}

// Redis and memory must agree on every decision of long random histories.
func TestAgreesWithMemory(t *testing.T) {
	rs := redistest.Start(t)
	client := rs.Client()
	s := newStore(t, rs.URL())
	freeze(t, s)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	for n := range 60 {
		var limits []bucket.Limit
		if n%2 == 0 {
			limits = anyLimits(t, rnd)
		} else {
			limits = alikeLimits(t, rnd)
		}
		var h history
		for len(h) < 100 {
			h = append(h, randomSteps(rnd, strconv.Itoa(n), limits)...)
		}
		for at := 0; at < len(h); {
			age(t, client, h[at].take, h[at].after)
			at += takeTogether(t, s, h[at:])
		}
		compare(t, h)
	}
}

// takeTogether sends the first step and those right after it as one batch.
func takeTogether(t *testing.T, s *Store, h history) int {
	takes := []bucket.Take{h[0].take}
	for len(takes) < len(h) && h[len(takes)].after == 0 {
		takes = append(takes, h[len(takes)].take)
	}
	out := make([]bucket.Outcome, len(takes))
	s.Take(t.Context(), takes, out)
	for i, o := range out {
		if o.Err != nil {
			t.Fatal(o.Err)
		}
		h[i].got = o.Decision
	}
	return len(takes)
}

func compare(t *testing.T, h history) {
	synctest.Test(t, func(t *testing.T) {
		s := bucket.New(bucket.Config{})
		for i, step := range h {
			time.Sleep(step.after)
			s.Sweep(1)
			if want := decisions.RoundUp(s.Take(&step.take).Decision); step.got != want {
				t.Fatalf("step %d, %+v after %v: redis decided %+v, memory %+v",
					i, step.take, step.after, step.got, want)
			}
		}
	})
}

// anyLimits returns two limits of any kind. Not more, since each conversion may round
// and two of them in a row may do so differently.
func anyLimits(t *testing.T, rnd *rand.Rand) []bucket.Limit {
	pers := []time.Duration{time.Millisecond, time.Second, time.Minute, 15 * time.Minute, time.Hour, 24 * time.Hour, 7777 * time.Microsecond}
	var limits []bucket.Limit
	for len(limits) < 2 {
		tokens := []int64{0, 1, 2, 3, 7, 100, 999, 86_399, 1_000_000}[rnd.IntN(9)]
		l := limit(t, tokens, pers[rnd.IntN(len(pers))], rnd.Int64N(2000)/(1+rnd.Int64N(500)))
		if Supports(l) == nil {
			limits = append(limits, l)
		}
	}
	return limits
}

// alikeLimits returns limits between which every conversion is exact.
func alikeLimits(t *testing.T, rnd *rand.Rand) []bucket.Limit {
	var limits []bucket.Limit
	for range 6 {
		tokens := []int64{1, 7, 11, 13, 49, 77}[rnd.IntN(6)]
		limits = append(limits, limit(t, tokens, time.Minute, rnd.Int64N(30)))
	}
	return limits
}

func randomSteps(rnd *rand.Rand, key string, limits []bucket.Limit) history {
	version := rnd.IntN(len(limits))
	l := limits[version]
	step := history{{take: bucket.Take{Name: "api", Key: key, Limit: l, Version: uint64(version)}}}
	take := &step[0].take
	switch rnd.IntN(8) {
	case 0:
		take.Cost = -rnd.Int64N(l.Burst() + 2)
	case 1:
		take.Cost = rnd.Int64N(2*l.Burst() + 3)
	case 2:
		take.Cost, take.Charge = rnd.Int64N(3*l.Burst()+2), true
	case 3: // a look
	default:
		take.Cost = 1 + rnd.Int64N(l.Burst()/3+1)
	}
	fill := max(l.FillTime(), time.Second)
	switch rnd.IntN(6) {
	case 0:
		step[0].after = time.Duration(rnd.Int64N(int64(fill)))
	case 1:
		step[0].after = time.Duration(rnd.Int64N(int64(fill)/50 + 1))
	case 2:
		step[0].after = time.Duration(rnd.IntN(5)) * time.Microsecond
	}
	step[0].after = step[0].after.Truncate(time.Microsecond)
	// Here Redis notices that a bucket which never refills was silent later than memory does.
	if step[0].after >= time.Hour && step[0].after < 3*time.Hour {
		step[0].after = 3 * time.Hour
	}
	return step
}
