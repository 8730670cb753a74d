package decisions

import (
	"slices"
	"time"

	"github.com/tokenring/tokenring/bucket"
)

const (
	us    = time.Microsecond
	ms    = time.Millisecond
	sec   = time.Second
	day   = 24 * time.Hour
	year  = 365 * day
	never = bucket.Never
)

// Cases returns the table.
func Cases() []Case {
	return slices.Concat(spending(), fractions(), givingBack(), edges(), charging(), versions(), limitChanges())
}

func yes(burst, left int64, full time.Duration) bucket.Decision {
	return bucket.Decision{Allowed: true, Burst: burst, Remaining: left, ResetAfter: full}
}

func no(burst, left int64, retry, full time.Duration) bucket.Decision {
	return bucket.Decision{Burst: burst, Remaining: left, RetryAfter: retry, ResetAfter: full}
}

func perSecond(tokens, burst int64) Rule { return Rule{tokens, sec, burst} }

func noRefill(burst int64) Rule { return Rule{0, 0, burst} }

func spending() []Case {
	slow, ten := perSecond(1, 3), perSecond(10, 20)
	return []Case{
		{"a bucket that nobody touched is full", []Step{
			{Rule: slow, Want: yes(3, 3, 0)},
			{Rule: slow, After: time.Hour, Want: yes(3, 3, 0)},
		}},
		{"a burst is spent and then no more", []Step{
			{Rule: slow, Cost: 1, Want: yes(3, 2, sec)},
			{Rule: slow, Cost: 1, Want: yes(3, 1, 2*sec)},
			{Rule: slow, Cost: 1, Want: yes(3, 0, 3*sec)},
			{Rule: slow, Cost: 1, Want: no(3, 0, sec, 3*sec)},
			{Rule: slow, Cost: 1, Want: no(3, 0, sec, 3*sec)},
		}},
		{"who waits for retry_after is allowed, a microsecond sooner is not", []Step{
			{Rule: perSecond(1, 1), Cost: 1, Want: yes(1, 0, sec)},
			{Rule: perSecond(1, 1), Cost: 1, Want: no(1, 0, sec, sec)},
			{Rule: perSecond(1, 1), Cost: 1, After: sec - us, Want: no(1, 0, us, us)},
			{Rule: perSecond(1, 1), Cost: 1, After: us, Want: yes(1, 0, sec)},
		}},
		{"a denied check takes nothing", []Step{
			{Rule: ten, Cost: 15, Want: yes(20, 5, 1500*ms)},
			{Rule: ten, Cost: 6, Want: no(20, 5, 100*ms, 1500*ms)},
			{Rule: ten, Cost: 5, Want: yes(20, 0, 2*sec)},
		}},
		{"a cost of the whole burst waits for a full bucket", []Step{
			{Rule: ten, Cost: 20, Want: yes(20, 0, 2*sec)},
			{Rule: ten, Cost: 20, Want: no(20, 0, 2*sec, 2*sec)},
			{Rule: ten, Cost: 20, After: 2*sec - us, Want: no(20, 19, us, us)},
			{Rule: ten, Cost: 20, After: us, Want: yes(20, 0, 2*sec)},
		}},
		{"a cost of 0 looks, also at an empty bucket", []Step{
			{Rule: Rule{1, time.Minute, 2}, Cost: 2, Want: yes(2, 0, 2*time.Minute)},
			{Rule: Rule{1, time.Minute, 2}, Want: yes(2, 0, 2*time.Minute)},
			{Rule: Rule{1, time.Minute, 2}, After: 30 * sec, Want: yes(2, 0, 90*sec)},
			{Rule: Rule{1, time.Minute, 2}, After: 30 * sec, Want: yes(2, 1, time.Minute)},
		}},
		{"what refills above full is lost", []Step{
			{Rule: slow, Cost: 2, Want: yes(3, 1, 2*sec)},
			{Rule: slow, Cost: 3, After: 10 * sec, Want: yes(3, 0, 3*sec)},
			{Rule: slow, Cost: 1, Want: no(3, 0, sec, 3*sec)},
		}},
		{"years of silence are a full bucket and nothing more", []Step{
			{Rule: Rule{1, day, 10}, Cost: 10, Want: yes(10, 0, 10*day)},
			{Rule: Rule{1, day, 10}, Cost: 10, After: 20 * year, Want: yes(10, 0, 10*day)},
			{Rule: Rule{1, day, 10}, Cost: 1, Want: no(10, 0, day, 10*day)},
		}},
		{"years of silence at a high rate", []Step{
			{Rule: perSecond(1_000_000, 1_000_000), Cost: 1_000_000, Want: yes(1_000_000, 0, sec)},
			{Rule: perSecond(1_000_000, 1_000_000), Cost: 999_999, After: 50 * year, Want: yes(1_000_000, 1, 999_999*us)},
		}},
		{"years until it is full", []Step{
			{Rule: Rule{1000, time.Hour, 100_000_000}, Cost: 100_000_000, Want: yes(100_000_000, 0, 360_000_000*sec)},
			{Rule: Rule{1000, time.Hour, 100_000_000}, Cost: 1, After: 3600 * ms, Want: yes(100_000_000, 0, 360_000_000*sec)},
			{Rule: Rule{1000, time.Hour, 100_000_000}, After: year, Want: yes(100_000_000, 8_760_000, 360_000_000*sec-year)},
		}},
	}
}

func fractions() []Case {
	third, seventh := perSecond(3, 3), Rule{7, time.Minute, 7}
	million, threeMillion := perSecond(1_000_000, 5), perSecond(3_000_000, 10)
	return []Case{
		{"3/s: a third of a second is not a whole number of anything", []Step{
			{Rule: perSecond(3, 1), Cost: 1, Want: yes(1, 0, 333_334*us)},
			{Rule: perSecond(3, 1), Cost: 1, After: 333_333 * us, Want: no(1, 0, us, us)},
			{Rule: perSecond(3, 1), Cost: 1, After: us, Want: yes(1, 0, 333_334*us)},
		}},
		{"3/s: looking often loses nothing", []Step{
			{Rule: third, Cost: 3, Want: yes(3, 0, sec)},
			{Rule: third, After: 333_333 * us, Want: yes(3, 0, 666_667*us)},
			{Rule: third, Cost: 1, After: 333_333 * us, Want: yes(3, 0, 666_668*us)},
			{Rule: third, Cost: 2, After: 333_334 * us, Want: yes(3, 0, sec)},
			{Rule: third, Cost: 1, Want: no(3, 0, 333_334*us, sec)},
		}},
		{"7/m: each token comes back at its very microsecond", []Step{
			{Rule: seventh, Cost: 7, Want: yes(7, 0, time.Minute)},
			{Rule: seventh, Cost: 1, After: 8_571_428 * us, Want: no(7, 0, us, 51_428_572*us)},
			{Rule: seventh, Cost: 1, After: us, Want: yes(7, 0, time.Minute)},
			{Rule: seventh, Cost: 1, After: 8_571_428 * us, Want: no(7, 0, us, 51_428_572*us)},
			{Rule: seventh, Cost: 1, After: us, Want: yes(7, 0, time.Minute)},
		}},
		{"7/s: retry_after of several tokens is rounded up once", []Step{
			{Rule: perSecond(7, 7), Cost: 7, Want: yes(7, 0, sec)},
			{Rule: perSecond(7, 7), Cost: 1, Want: no(7, 0, 142_858*us, sec)},
			{Rule: perSecond(7, 7), Cost: 2, Want: no(7, 0, 285_715*us, sec)},
			{Rule: perSecond(7, 7), Cost: 3, Want: no(7, 0, 428_572*us, sec)},
			{Rule: perSecond(7, 7), Cost: 3, After: 428_571 * us, Want: no(7, 2, us, 571_429*us)},
			{Rule: perSecond(7, 7), Cost: 3, After: us, Want: yes(7, 0, sec)},
		}},
		{"1000000/s: a token a microsecond", []Step{
			{Rule: million, Cost: 5, Want: yes(5, 0, 5*us)},
			{Rule: million, Cost: 1, Want: no(5, 0, us, 5*us)},
			{Rule: million, Cost: 1, After: us, Want: yes(5, 0, 5*us)},
			{Rule: million, After: 3 * us, Want: yes(5, 3, 2*us)},
			{Rule: million, Cost: 5, After: 2 * us, Want: yes(5, 0, 5*us)},
		}},
		{"3000000/s: several tokens a microsecond", []Step{
			{Rule: threeMillion, Cost: 10, Want: yes(10, 0, 4*us)},
			{Rule: threeMillion, Cost: 4, Want: no(10, 0, 2*us, 4*us)},
			{Rule: threeMillion, Cost: 3, After: us, Want: yes(10, 0, 4*us)},
			{Rule: threeMillion, After: 3 * us, Want: yes(10, 9, us)},
			{Rule: threeMillion, After: us, Want: yes(10, 10, 0)},
		}},
		{"1/d: the last microsecond of the day", []Step{
			{Rule: Rule{1, day, 1}, Cost: 1, Want: yes(1, 0, day)},
			{Rule: Rule{1, day, 1}, Cost: 1, After: day - us, Want: no(1, 0, us, us)},
			{Rule: Rule{1, day, 1}, Cost: 1, After: us, Want: yes(1, 0, day)},
		}},
		{"1 in 15 min", []Step{
			{Rule: Rule{1, 15 * time.Minute, 2}, Cost: 2, Want: yes(2, 0, 30*time.Minute)},
			{Rule: Rule{1, 15 * time.Minute, 2}, Cost: 1, After: 14 * time.Minute, Want: no(2, 0, time.Minute, 16*time.Minute)},
			{Rule: Rule{1, 15 * time.Minute, 2}, Cost: 1, After: 2 * time.Minute, Want: yes(2, 0, 29*time.Minute)},
		}},
	}
}

func givingBack() []Case {
	five := perSecond(1, 5)
	return []Case{
		{"tokens given back can be spent again", []Step{
			{Rule: five, Cost: 3, Want: yes(5, 2, 3*sec)},
			{Rule: five, Cost: -2, Want: yes(5, 4, sec)},
			{Rule: five, Cost: 4, Want: yes(5, 0, 5*sec)},
		}},
		{"nothing is given back above full", []Step{
			{Rule: five, Cost: 3, Want: yes(5, 2, 3*sec)},
			{Rule: five, Cost: -10, Want: yes(5, 5, 0)},
			{Rule: five, Cost: 5, Want: yes(5, 0, 5*sec)},
			{Rule: five, Cost: 1, Want: no(5, 0, sec, 5*sec)},
		}},
		{"giving back what would just fill the bucket", []Step{
			{Rule: five, Cost: 3, Want: yes(5, 2, 3*sec)},
			{Rule: five, Cost: -3, Want: yes(5, 5, 0)},
			{Rule: five, Cost: 1, Want: yes(5, 4, sec)},
		}},
		{"giving back to a bucket that nobody touched", []Step{
			{Rule: five, Cost: -4, Want: yes(5, 5, 0)},
			{Rule: five, Cost: 5, Want: yes(5, 0, 5*sec)},
			{Rule: five, Cost: 1, Want: no(5, 0, sec, 5*sec)},
		}},
		{"giving back keeps the part of a token that had come back", []Step{
			{Rule: perSecond(1, 2), Cost: 2, Want: yes(2, 0, 2*sec)},
			{Rule: perSecond(1, 2), Cost: -1, After: 500 * ms, Want: yes(2, 1, 500*ms)},
			{Rule: perSecond(1, 2), Cost: 2, After: 500*ms - us, Want: no(2, 1, us, us)},
			{Rule: perSecond(1, 2), Cost: 2, After: us, Want: yes(2, 0, 2*sec)},
		}},
		{"giving back the largest cost", []Step{
			{Rule: five, Cost: 5, Want: yes(5, 0, 5*sec)},
			{Rule: five, Cost: -bucket.MaxCost, Want: yes(5, 5, 0)},
		}},
	}
}

func edges() []Case {
	five := perSecond(1, 5)
	large := perSecond(bucket.MaxCost, bucket.MaxCost)
	return []Case{
		{"a cost above the burst is never allowed and takes nothing", []Step{
			{Rule: five, Cost: 6, Want: no(5, 5, never, 0)},
			{Rule: five, Cost: 5, Want: yes(5, 0, 5*sec)},
			{Rule: five, Cost: 6, Want: no(5, 0, never, 5*sec)},
			{Rule: five, Cost: 5, After: 5 * sec, Want: yes(5, 0, 5*sec)},
		}},
		{"the largest cost", []Step{
			{Rule: large, Cost: bucket.MaxCost, Want: yes(bucket.MaxCost, 0, sec)},
			{Rule: large, Cost: bucket.MaxCost, Want: no(bucket.MaxCost, 0, sec, sec)},
			{Rule: large, Cost: bucket.MaxCost, After: sec - us, Want: no(bucket.MaxCost, bucket.MaxCost-1000, us, us)},
			{Rule: large, Cost: bucket.MaxCost, After: us, Want: yes(bucket.MaxCost, 0, sec)},
			{Rule: large, Cost: -bucket.MaxCost, Want: yes(bucket.MaxCost, bucket.MaxCost, 0)},
		}},
		{"the largest cost of a small bucket", []Step{
			{Rule: five, Cost: bucket.MaxCost, Want: no(5, 5, never, 0)},
		}},
		{"a burst of 0 denies everything", []Step{
			{Rule: perSecond(1, 0), Cost: 1, Want: no(0, 0, never, 0)},
			{Rule: perSecond(1, 0), Want: yes(0, 0, 0)},
			{Rule: perSecond(1, 0), Cost: -1, Want: yes(0, 0, 0)},
			{Rule: perSecond(1, 0), Cost: 1, After: time.Hour, Want: no(0, 0, never, 0)},
		}},
		{"a rate of 0 never refills", []Step{
			{Rule: noRefill(2), Cost: 1, Want: yes(2, 1, never)},
			{Rule: noRefill(2), Cost: 1, After: time.Minute, Want: yes(2, 0, never)},
			{Rule: noRefill(2), Cost: 1, After: 50 * time.Minute, Want: no(2, 0, never, never)},
			{Rule: noRefill(2), Cost: -1, Want: yes(2, 1, never)},
			{Rule: noRefill(2), Cost: -1, Want: yes(2, 2, 0)},
		}},
		{"a rate and a burst of 0", []Step{
			{Rule: noRefill(0), Cost: 1, Want: no(0, 0, never, 0)},
			{Rule: noRefill(0), Cost: 0, Want: yes(0, 0, 0)},
			{Rule: noRefill(0), Cost: 3, Charge: true, Want: yes(0, 0, 0)},
		}},
		{"what never refills goes after a time of silence, and a denied check is none", []Step{
			{Rule: noRefill(1), Cost: 1, Want: yes(1, 0, never)},
			{Rule: noRefill(1), Cost: 1, After: IdleTTL - time.Minute, Want: no(1, 0, never, never)},
			{Rule: noRefill(1), Cost: 0, After: IdleTTL - time.Minute, Want: yes(1, 0, never)},
			{Rule: noRefill(1), Cost: 1, After: IdleTTL - time.Minute, Want: no(1, 0, never, never)},
			{Rule: noRefill(1), Cost: 1, After: 3 * IdleTTL, Want: yes(1, 0, never)},
		}},
	}
}

func charging() []Case {
	five := perSecond(1, 5)
	return []Case{
		{"a charge within the bucket", []Step{
			{Rule: five, Cost: 2, Charge: true, Want: yes(5, 3, 2*sec)},
			{Rule: five, Cost: 4, Want: no(5, 3, sec, 2*sec)},
		}},
		{"a charge of nothing", []Step{
			{Rule: five, Charge: true, Want: yes(5, 5, 0)},
		}},
		{"a debt is paid back before anything is allowed", []Step{
			{Rule: five, Cost: 4, Want: yes(5, 1, 4*sec)},
			{Rule: five, Cost: 3, Charge: true, Want: yes(5, 0, 7*sec)},
			{Rule: five, Cost: 1, Want: no(5, 0, 3*sec, 7*sec)},
			{Rule: five, Cost: 1, After: 2 * sec, Want: no(5, 0, sec, 5*sec)},
			{Rule: five, Cost: 1, After: sec, Want: yes(5, 0, 5*sec)},
		}},
		{"a debt ends at one burst", []Step{
			{Rule: five, Cost: 10, Charge: true, Want: yes(5, 0, 10*sec)},
			{Rule: five, Cost: 1, Charge: true, Want: yes(5, 0, 10*sec)},
			{Rule: five, Cost: 1, Want: no(5, 0, 6*sec, 10*sec)},
			{Rule: five, Cost: 1, After: 5 * sec, Want: no(5, 0, sec, 5*sec)},
		}},
		{"a charge far above the burst", []Step{
			{Rule: five, Cost: 11, Charge: true, Want: yes(5, 0, 10*sec)},
			{Rule: five, Cost: bucket.MaxCost, Charge: true, Want: yes(5, 0, 10*sec)},
			{Rule: five, Cost: 5, After: 10*sec - us, Want: no(5, 4, us, us)},
			{Rule: five, Cost: 5, After: us, Want: yes(5, 0, 5*sec)},
		}},
		{"giving back pays a debt", []Step{
			{Rule: five, Cost: 8, Charge: true, Want: yes(5, 0, 8*sec)},
			{Rule: five, Cost: -4, Want: yes(5, 1, 4*sec)},
			{Rule: five, Cost: -5, Want: yes(5, 5, 0)},
		}},
		{"a cost above the burst of a bucket in debt", []Step{
			{Rule: five, Cost: 7, Charge: true, Want: yes(5, 0, 7*sec)},
			{Rule: five, Cost: 6, Want: no(5, 0, never, 7*sec)},
		}},
		{"a debt that never refills", []Step{
			{Rule: noRefill(3), Cost: 5, Charge: true, Want: yes(3, 0, never)},
			{Rule: noRefill(3), Cost: -2, Want: yes(3, 0, never)},
			{Rule: noRefill(3), Cost: 1, Want: no(3, 0, never, never)},
			{Rule: noRefill(3), Cost: -1, Want: yes(3, 1, never)},
		}},
	}
}
