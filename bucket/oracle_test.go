package bucket

import (
	"math"
	"math/big"
	"testing"
	"time"
	"unique"

	"pgregory.net/rapid"
)

// oracle is a bucket in rational numbers, written for being obviously right. It counts
// tokens, and knows nothing of units.
type oracle struct {
	tokens  *big.Rat // below zero in debt
	at      int64
	rule    oracleRule
	version uint64
}

type oracleRule struct {
	tokens, per, burst int64 // so many tokens come back in so many nanoseconds
}

func rat(n int64) *big.Rat { return new(big.Rat).SetInt64(n) }

func minRat(a, b *big.Rat) *big.Rat {
	if a.Cmp(b) < 0 {
		return a
	}
	return b
}

// ceil rounds a number that is not negative up to a whole one.
func ceil(r *big.Rat) *big.Int {
	q, m := new(big.Int).DivMod(r.Num(), r.Denom(), new(big.Int))
	if m.Sign() > 0 {
		q.Add(q, big.NewInt(1))
	}
	return q
}

func floor(r *big.Rat) *big.Int { return new(big.Int).Div(r.Num(), r.Denom()) }

func (o *oracle) refill(now int64) {
	if now <= o.at {
		return
	}
	back := new(big.Rat).Mul(rat(now-o.at), big.NewRat(o.rule.tokens, o.rule.per))
	o.tokens = minRat(rat(o.rule.burst), back.Add(back, o.tokens))
	o.at = now
}

// follow adopts a newer rule. The deficit is kept to the next finer step that the new
// rule can count: a token is per/gcd of them.
func (o *oracle) follow(r oracleRule, version uint64) {
	if version <= o.version {
		return
	}
	if r != o.rule {
		deficit := new(big.Rat).Sub(rat(o.rule.burst), o.tokens)
		steps := new(big.Int).Div(big.NewInt(r.per), new(big.Int).GCD(nil, nil, big.NewInt(r.tokens), big.NewInt(r.per)))
		if r.tokens == 0 {
			steps = big.NewInt(1)
		}
		counted := ceil(new(big.Rat).Mul(deficit, new(big.Rat).SetInt(steps)))
		deficit = minRat(rat(r.burst), new(big.Rat).SetFrac(counted, steps))
		o.tokens = new(big.Rat).Sub(rat(r.burst), deficit)
	}
	o.rule, o.version = r, version
}

// wait is how long the tokens take to come back.
func (o *oracle) wait(tokens *big.Rat) time.Duration {
	switch {
	case tokens.Sign() <= 0:
		return 0
	case o.rule.tokens == 0:
		return Never
	}
	return time.Duration(ceil(new(big.Rat).Mul(tokens, big.NewRat(o.rule.per, o.rule.tokens))).Int64())
}

func (o *oracle) take(cost int64, charge bool) Decision {
	d := Decision{Allowed: true, Burst: o.rule.burst}
	after := new(big.Rat).Sub(o.tokens, rat(cost))
	switch {
	case charge:
		o.tokens = after
		if lowest := rat(-o.rule.burst); o.tokens.Cmp(lowest) < 0 {
			o.tokens = lowest
		}
	case cost <= 0:
		o.tokens = minRat(after, rat(o.rule.burst))
	case cost > o.rule.burst:
		d.Allowed, d.RetryAfter = false, Never
	case after.Sign() >= 0:
		o.tokens = after
	default:
		d.Allowed, d.RetryAfter = false, o.wait(new(big.Rat).Neg(after))
	}
	if o.tokens.Sign() > 0 {
		d.Remaining = floor(o.tokens).Int64()
	}
	d.ResetAfter = o.wait(new(big.Rat).Sub(rat(o.rule.burst), o.tokens))
	return d
}

// around draws numbers of every magnitude up to a bound: small ones, powers and the ends.
func around(most int64) *rapid.Generator[int64] {
	return rapid.Custom(func(t *rapid.T) int64 {
		switch rapid.IntRange(0, 3).Draw(t, "kind") {
		case 0:
			return rapid.Int64Range(0, min(20, most)).Draw(t, "small")
		case 1:
			bits := rapid.IntRange(0, 62).Draw(t, "bits")
			return min(most, 1<<bits+rapid.Int64Range(-1, 1).Draw(t, "off"))
		case 2:
			return most - min(most, rapid.Int64Range(0, 3).Draw(t, "below the end"))
		default:
			return rapid.Int64Range(0, most).Draw(t, "any")
		}
	})
}

// rules draws rules that can be represented.
func rules(t *rapid.T) (oracleRule, Limit) {
	r := oracleRule{per: 1}
	if rapid.IntRange(0, 5).Draw(t, "refills") > 0 {
		r.tokens = 1 + around(math.MaxInt64-1).Draw(t, "tokens")
		r.per = rapid.OneOf(
			rapid.SampledFrom([]int64{int64(time.Second), int64(time.Minute), int64(time.Hour), int64(24 * time.Hour), 1}),
			rapid.Map(around(math.MaxInt64-1), func(n int64) int64 { return n + 1 }),
		).Draw(t, "per")
	}
	r.burst = around(math.MaxInt64).Draw(t, "burst")
	l, err := NewLimit(r.tokens, time.Duration(r.per), r.burst)
	if err != nil {
		// Too large for the rate: the largest that is not.
		r.burst = maxCapacity / (r.per / gcd(r.tokens, r.per))
		if l, err = NewLimit(r.tokens, time.Duration(r.per), r.burst); err != nil {
			t.Fatalf("the largest burst that fits is refused: %v", err)
		}
		if _, err := NewLimit(r.tokens, time.Duration(r.per), r.burst+1); err == nil {
			t.Fatalf("burst %d is accepted, one more than fits", r.burst+1)
		}
	}
	return r, l
}

// Every decision is the one of a bucket in rational numbers: over random times up to the
// end of the clock, costs, gifts, debts and changing limits.
func TestDecisionsAreExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r, l := rules(t)
		now := around(math.MaxInt64/2).Draw(t, "start")
		b := held{level: full(l, now), rule: unique.Make(rule{l, 0})}
		o := oracle{tokens: rat(r.burst), at: now, rule: r}
		version := uint64(0)
		for step := range rapid.IntRange(1, 40).Draw(t, "steps") {
			switch rapid.IntRange(0, 9).Draw(t, "what") {
			case 0:
				r, l = rules(t)
				version = rapid.Uint64Range(0, 5).Draw(t, "version")
			case 1, 2, 3, 4:
				now += around(math.MaxInt64-now).Draw(t, "elapsed")
			case 5:
				now -= min(now, rapid.Int64Range(0, 1000).Draw(t, "back"))
			}
			take := Take{
				Limit: l, Version: version,
				Cost:   around(MaxCost).Draw(t, "cost"),
				Charge: rapid.IntRange(0, 9).Draw(t, "charge") == 0,
			}
			if !take.Charge && rapid.IntRange(0, 4).Draw(t, "gives back") == 0 {
				take.Cost = -take.Cost
			}
			got := b.decide(&take, now)
			o.refill(now)
			o.follow(r, version)
			if want := o.take(take.Cost, take.Charge); got != want {
				t.Fatalf("step %d: %+v at %d decided\n  %+v, want\n  %+v", step, take, now, got, want)
			}
		}
	})
}

// Whoever waits as long as a denial says is allowed then, and not a nanosecond sooner.
func TestRetryAfterIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		_, l := rules(t)
		if !l.Refills() || l.Burst() == 0 {
			return
		}
		b := held{level: full(l, 0), rule: unique.Make(rule{l, 0})}
		b.level.units -= around(2*l.capacity()).Draw(t, "missing")
		cost := 1 + around(min(l.Burst(), MaxCost)-1).Draw(t, "cost")
		d := b.decide(&Take{Limit: l, Cost: cost}, 0)
		if d.Allowed {
			return
		}
		early := b
		if d := early.decide(&Take{Limit: l, Cost: cost}, int64(d.RetryAfter)-1); d.Allowed {
			t.Fatal("allowed before the wait was over")
		}
		if d := b.decide(&Take{Limit: l, Cost: cost}, int64(d.RetryAfter)); !d.Allowed {
			t.Fatal("denied after the wait")
		}
	})
}

// A share of a limit never refills faster than its part, and its burst is rounded up.
func TestShares(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		_, l := rules(t)
		n := rapid.IntRange(1, 1000).Draw(t, "nodes")
		s := l.Share(n)
		if l.Burst() == 0 {
			if s != l {
				t.Fatal("a limit that lets nothing through is shared")
			}
			return
		}
		if s.Burst()-1 > (l.Burst()-1)/int64(n) || s.Burst()*int64(n) < l.Burst() && s.Burst() <= math.MaxInt64/int64(n) {
			t.Fatalf("share of burst %d for %d nodes is %d", l.Burst(), n, s.Burst())
		}
		if s.d != 0 && s.capacity() > maxCapacity || s.capacity() < 0 {
			t.Fatalf("the share's capacity is %d", s.capacity())
		}
		tokens, per := l.Rate()
		shareTokens, sharePer := s.Rate()
		part := new(big.Rat).Quo(big.NewRat(tokens, int64(per)), rat(int64(n)))
		if got := big.NewRat(shareTokens, int64(sharePer)); got.Cmp(part) > 0 && shareTokens > 1 {
			t.Fatalf("the share refills at %v, more than its part %v", got, part)
		}
	})
}

func FuzzDecide(f *testing.F) {
	f.Add(int64(100), int64(time.Minute), int64(20), int64(1), int64(time.Second), int64(0), false)
	f.Add(int64(7), int64(time.Minute), int64(7), int64(-3), int64(math.MaxInt64), int64(5), true)
	f.Add(int64(0), int64(0), int64(0), int64(MaxCost), int64(1), int64(math.MinInt64), false)
	f.Fuzz(func(t *testing.T, tokens, per, burst, cost, elapsed, start int64, charge bool) {
		l, err := NewLimit(tokens, time.Duration(per), burst)
		if err != nil || cost < -MaxCost || cost > MaxCost || charge && cost < 0 {
			return
		}
		r := oracleRule{tokens: tokens, per: per, burst: burst}
		if tokens == 0 {
			r.per = 1
		}
		start = max(start, 0)
		b := held{level: full(l, start), rule: unique.Make(rule{l, 0})}
		o := oracle{tokens: rat(burst), at: start, rule: r}
		now := start
		for range 5 {
			if now < math.MaxInt64-max(elapsed, 0) {
				now += max(elapsed, 0)
			}
			got := b.decide(&Take{Limit: l, Cost: cost, Charge: charge}, now)
			o.refill(now)
			if want := o.take(cost, charge); got != want {
				t.Fatalf("%+v decided %+v, want %+v", r, got, want)
			}
		}
	})
}

// The article's rule: a bucket that is polled faster than it refills must not lose the
// fractions of a token. Over an hour it yields its burst and exactly what the rate gives.
func TestPollingLosesNothing(t *testing.T) {
	for _, c := range []struct {
		name   string
		tokens int64
		per    time.Duration
		burst  int64
		every  time.Duration
	}{
		{"3/s", 3, time.Second, 10, 7 * time.Millisecond},
		{"7/m", 7, time.Minute, 7, 11 * time.Millisecond},
		{"1000000/s", 1_000_000, time.Second, 1000, 900_001 * time.Nanosecond},
		{"1/15m", 1, 15 * time.Minute, 1, 13 * time.Millisecond},
		{"999999937/h", 999_999_937, time.Hour, 500, 1_500_007 * time.Nanosecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, err := NewLimit(c.tokens, c.per, c.burst)
			if err != nil {
				t.Fatal(err)
			}
			b := held{level: full(l, 0), rule: unique.Make(rule{l, 0})}
			allowed, last := int64(0), int64(0)
			for now := int64(0); now <= int64(time.Hour); now += int64(c.every) {
				last = now
				// All there is, so that the bucket is never full and wastes nothing.
				there := b.decide(&Take{Limit: l}, now).Remaining
				if there > 0 && b.decide(&Take{Limit: l, Cost: there}, now).Allowed {
					allowed += there
				}
				if b.decide(&Take{Limit: l, Cost: 1}, now).Allowed {
					t.Fatalf("at %v the bucket gave more than it had", time.Duration(now))
				}
			}
			want := new(big.Rat).Mul(rat(last), big.NewRat(c.tokens, int64(c.per)))
			if got := c.burst + floor(want).Int64(); allowed != got {
				t.Errorf("%d allowed in %v, want %d", allowed, time.Duration(last), got)
			}
		})
	}
}

func TestLimitsThatCannotBe(t *testing.T) {
	for _, c := range []struct {
		tokens int64
		per    time.Duration
		burst  int64
		ok     bool
	}{
		{1, 24 * time.Hour, maxCapacity / int64(24*time.Hour), true},
		{1, 24 * time.Hour, maxCapacity/int64(24*time.Hour) + 1, false},
		{0, 0, maxCapacity, true},
		{0, 0, maxCapacity + 1, false},
		{math.MaxInt64, 1, maxCapacity, true},
		{-1, time.Second, 1, false},
		{1, 0, 1, false},
		{1, -time.Second, 1, false},
		{1, time.Second, -1, false},
	} {
		l, err := NewLimit(c.tokens, c.per, c.burst)
		if (err == nil) != c.ok {
			t.Errorf("%d/%v, burst %d: %v, want accepted = %v", c.tokens, c.per, c.burst, err, c.ok)
		}
		if err != nil && l != (Limit{}) {
			t.Errorf("%d/%v, burst %d: a refused limit is not zero", c.tokens, c.per, c.burst)
		}
	}
	if d := (&held{rule: unique.Make(rule{})}).decide(&Take{Cost: 1}, 5); d.Allowed || d.RetryAfter != Never {
		t.Errorf("the zero limit decided %+v, want never", d)
	}
}
