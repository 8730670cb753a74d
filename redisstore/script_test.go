package redisstore

import (
	"errors"
	"math"
	"math/big"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/tokenring/tokenring/bucket"
	"github.com/tokenring/tokenring/test/redistest"
)

func TestSupports(t *testing.T) {
	tests := []struct {
		name   string
		tokens int64
		per    time.Duration
		burst  int64
		ok     bool
	}{
		{"as usual", 100, time.Minute, 20, true},
		{"nothing", 0, 0, 0, true},
		{"never refills, largest", 0, 0, maxUnits, true},
		{"never refills, too large", 0, 0, maxUnits + 1, false},
		{"a token a day, largest", 1, 24 * time.Hour, 26_062, true},
		{"a token a day, too large", 1, 24 * time.Hour, 26_063, false},
		{"a token a nanosecond", 1, 1, 1, true},
		{"largest cost a second", bucket.MaxCost, time.Second, bucket.MaxCost, true},
		{"highest rate", maxUnits / 1000, 1, 1, true},
		{"too high a rate", maxUnits/1000 + 1, 1, 1, false},
		{"far too high a rate", math.MaxInt64, 1, 1, false},
		{"high rate of whole microseconds", maxUnits - 1, 1000, 1, true},
		{"burst 0 at a very low rate", 1, math.MaxInt64, 0, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := Supports(limit(t, tt.tokens, tt.per, tt.burst))
			if (err == nil) != tt.ok {
				t.Errorf("got error %v, want supported %v", err, tt.ok)
			}
			if err != nil && !errors.Is(err, bucket.ErrLimit) {
				t.Errorf("error %v does not wrap ErrLimit", err)
			}
		})
	}
	if err := Supports(bucket.Limit{}); err != nil {
		t.Errorf("the zero limit: %v", err)
	}
}

// At the ends of what is supported the script must still be exact.
func TestLargestNumbers(t *testing.T) {
	rs := redistest.Start(t)
	client := rs.Client()
	s := newStore(t, rs.URL())
	freeze(t, s)
	t.Run("burst", func(t *testing.T) {
		take := bucket.Take{Name: "api", Key: "burst", Limit: limit(t, 0, 0, maxUnits), Cost: 1}
		if d := mustTake(t, s, take); d.Burst != maxUnits || d.Remaining != maxUnits-1 {
			t.Errorf("got %+v, want %d remaining", d, maxUnits-1)
		}
		take.Cost = maxUnits - 2
		if d := mustTake(t, s, take); d.Remaining != 1 {
			t.Errorf("got %+v, want 1 remaining", d)
		}
		take.Cost, take.Charge = 2*maxUnits, true
		mustTake(t, s, take)
		take.Cost, take.Charge = -(maxUnits + 3), false
		if d := mustTake(t, s, take); d.Remaining != 3 {
			t.Errorf("after a debt of the burst: got %+v, want 3 remaining", d)
		}
		take.Cost = math.MaxInt64
		if d := mustTake(t, s, take); d.Allowed || d.RetryAfter != bucket.Never {
			t.Errorf("got %+v, want never", d)
		}
		take.Cost = math.MinInt64
		if d := mustTake(t, s, take); d.Remaining != maxUnits {
			t.Errorf("got %+v, want a full bucket", d)
		}
	})
	t.Run("rate", func(t *testing.T) {
		take := bucket.Take{Name: "api", Key: "rate", Limit: limit(t, maxUnits-1, time.Microsecond, maxUnits), Cost: maxUnits}
		if d := mustTake(t, s, take); d.Remaining != 0 || d.ResetAfter != 2*time.Microsecond {
			t.Errorf("got %+v, want full in 2 µs", d)
		}
		age(t, client, take, time.Microsecond)
		if d := mustTake(t, s, take); d.Allowed || d.Remaining != maxUnits-1 || d.RetryAfter != time.Microsecond {
			t.Errorf("got %+v, want all but one", d)
		}
	})
	t.Run("longest wait", func(t *testing.T) {
		take := bucket.Take{Name: "api", Key: "wait", Limit: limit(t, 1, 24*time.Hour, 26_062), Cost: 2 * 26_062, Charge: true}
		if d := mustTake(t, s, take); d.ResetAfter != 2*26_062*24*time.Hour {
			t.Errorf("got %+v, want two bursts of days", d)
		}
	})
}

// A deficit converts exactly for any two rates, rounded up by less than a unit.
func TestConvertsExactly(t *testing.T) {
	rs := redistest.Start(t)
	client := rs.Client()
	s := newStore(t, rs.URL())
	freeze(t, s)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	for i := range 300 {
		old, oldUnits := randomLimit(t, rnd)
		fresh, units := randomLimit(t, rnd)
		take := bucket.Take{Name: "api", Key: strconv.Itoa(i), Limit: old, Version: 1, Cost: old.Burst()}
		mustTake(t, s, take)
		age(t, client, take, time.Duration(rnd.Int64N(old.FillTime().Microseconds()))*time.Microsecond)
		look := take
		look.Cost = 0
		mustTake(t, s, look)
		before := stored(t, client.HGet(t.Context(), storeKey(&take), "level").Val())
		missing := old.Burst()*oldUnits - before
		look.Limit, look.Version = fresh, 2
		mustTake(t, s, look)
		want := roundedUp(missing, units, oldUnits)
		capacity := fresh.Burst() * units
		if want.Cmp(big.NewInt(capacity)) > 0 {
			want.SetInt64(capacity)
		}
		after := stored(t, client.HGet(t.Context(), storeKey(&take), "level").Val())
		if got := capacity - after; want.Cmp(big.NewInt(got)) != 0 {
			t.Fatalf("%d of %d units a token became %d of %d, want %d", missing, oldUnits, got, units, want)
		}
	}
}

// randomLimit returns a limit that refills, and the units of its token.
func randomLimit(t *testing.T, rnd *rand.Rand) (bucket.Limit, int64) {
	for {
		per := time.Duration(1 + rnd.Int64N(1<<(1+rnd.IntN(58))))
		l, err := bucket.NewLimit(1+rnd.Int64N(1<<rnd.IntN(30)), per, 1+rnd.Int64N(1<<rnd.IntN(40)))
		if err != nil || l.FillTime() < time.Microsecond {
			continue
		}
		if _, d, err := units(l); err == nil {
			return l, d
		}
	}
}

func stored(t *testing.T, s string) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// roundedUp returns a*b/c.
func roundedUp(a, b, c int64) *big.Int {
	n := new(big.Int).Mul(big.NewInt(a), big.NewInt(b))
	n.Add(n, big.NewInt(c-1))
	return n.Quo(n, big.NewInt(c))
}
