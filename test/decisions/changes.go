package decisions

import (
	"math"
	"time"
)

// newest is the highest version, more than a double holds exactly.
const newest = uint64(math.MaxUint64)

func versions() []Case {
	ten, other := perSecond(1, 10), perSecond(10, 3)
	return []Case{
		{"an older version is decided by the limit that the bucket has", []Step{
			{Rule: ten, Version: 5, Cost: 4, Want: yes(10, 6, 4*sec)},
			{Rule: other, Version: 4, Cost: 5, Want: yes(10, 1, 9*sec)},
			{Rule: other, Version: 0, Cost: 2, Want: no(10, 1, sec, 9*sec)},
		}},
		{"an equal version is decided by the limit that the bucket has", []Step{
			{Rule: ten, Version: 5, Cost: 4, Want: yes(10, 6, 4*sec)},
			{Rule: other, Version: 5, Cost: 5, Want: yes(10, 1, 9*sec)},
		}},
		{"a newer version is adopted, and what was newest before is old then", []Step{
			{Rule: ten, Version: 5, Cost: 2, Want: yes(10, 8, 2*sec)},
			{Rule: other, Version: 6, Cost: 1, Want: yes(3, 0, 300*ms)},
			{Rule: ten, Version: 5, Cost: 1, Want: no(3, 0, 100*ms, 300*ms)},
		}},
		{"a bucket that is full again forgets its version", []Step{
			{Rule: ten, Version: 5, Cost: 1, Want: yes(10, 9, sec)},
			{Rule: other, Version: 4, Cost: 1, After: sec, Want: yes(3, 2, 100*ms)},
		}},
		{"a bucket that was filled by giving back forgets its version", []Step{
			{Rule: ten, Version: 5, Cost: 1, Want: yes(10, 9, sec)},
			{Rule: ten, Version: 5, Cost: -1, Want: yes(10, 10, 0)},
			{Rule: other, Version: 4, Cost: 1, Want: yes(3, 2, 100*ms)},
		}},
		{"a check that is denied or only looks brings its version too", []Step{
			{Rule: ten, Version: 1, Cost: 3, Want: yes(10, 7, 3*sec)},
			{Rule: perSecond(1, 5), Version: 2, Cost: 6, Want: no(5, 2, never, 3*sec)},
			{Rule: ten, Version: 1, Cost: 3, Want: no(5, 2, sec, 3*sec)},
			{Rule: perSecond(1, 4), Version: 3, Want: yes(4, 1, 3*sec)},
			{Rule: perSecond(1, 5), Version: 2, Cost: 2, Want: no(4, 1, sec, 3*sec)},
		}},
		{"versions of more than 53 bits", []Step{
			{Rule: ten, Version: newest - 1, Cost: 1, Want: yes(10, 9, sec)},
			{Rule: perSecond(1, 20), Version: newest - 2, Cost: 1, Want: yes(10, 8, 2*sec)},
			{Rule: perSecond(1, 20), Version: newest, Cost: 1, Want: yes(20, 17, 3*sec)},
			{Rule: ten, Version: newest - 1, Cost: 1, Want: yes(20, 16, 4*sec)},
		}},
		{"versions with more and with fewer digits", []Step{
			{Rule: ten, Version: 9_999_999_999, Cost: 1, Want: yes(10, 9, sec)},
			{Rule: perSecond(1, 20), Version: 10_000_000_000, Cost: 1, Want: yes(20, 18, 2*sec)},
			{Rule: ten, Version: 9_999_999_999, Cost: 1, Want: yes(20, 17, 3*sec)},
			{Rule: ten, Version: 20_000_000_001, Cost: 1, Want: yes(10, 6, 4*sec)},
			{Rule: perSecond(1, 20), Version: 10_000_000_002, Cost: 1, Want: yes(10, 5, 5*sec)},
		}},
	}
}

func limitChanges() []Case {
	five, seventh := perSecond(1, 5), Rule{7, time.Minute, 7}
	return []Case{
		{"a larger burst keeps what was used", []Step{
			{Rule: five, Version: 1, Cost: 3, Want: yes(5, 2, 3*sec)},
			{Rule: perSecond(1, 10), Version: 2, Want: yes(10, 7, 3*sec)},
		}},
		{"a smaller burst keeps what was used, up to itself", []Step{
			{Rule: perSecond(1, 10), Version: 1, Cost: 3, Want: yes(10, 7, 3*sec)},
			{Rule: five, Version: 2, Want: yes(5, 2, 3*sec)},
			{Rule: perSecond(1, 2), Version: 3, Want: yes(2, 0, 2*sec)},
			{Rule: perSecond(1, 10), Version: 4, Want: yes(10, 8, 2*sec)},
		}},
		{"a higher rate keeps what was used", []Step{
			{Rule: perSecond(1, 10), Version: 1, Cost: 10, Want: yes(10, 0, 10*sec)},
			{Rule: perSecond(2, 10), Version: 2, Want: yes(10, 0, 5*sec)},
			{Rule: perSecond(2, 10), Version: 2, Cost: 2, After: sec, Want: yes(10, 0, 5*sec)},
		}},
		{"a lower rate keeps what was used, and the part of a token that came back", []Step{
			{Rule: perSecond(3, 3), Version: 1, Cost: 3, Want: yes(3, 0, sec)},
			{Rule: perSecond(1, 3), Version: 2, After: 100 * ms, Want: yes(3, 0, 2700*ms)},
		}},
		{"the time before a change counts at the old rate", []Step{
			{Rule: perSecond(1, 10), Version: 1, Cost: 10, Want: yes(10, 0, 10*sec)},
			{Rule: perSecond(10, 10), Version: 2, After: 5 * sec, Want: yes(10, 5, 500*ms)},
		}},
		{"a deficit that the new rate cannot count is rounded up", []Step{
			{Rule: seventh, Version: 1, Cost: 7, Want: yes(7, 0, time.Minute)},
			{Rule: perSecond(1, 7), Version: 2, Cost: 1, After: sec, Want: no(7, 0, 883_334*us, 6_883_334*us)},
			{Rule: perSecond(1, 7), Version: 2, Cost: 1, After: 883_333 * us, Want: no(7, 0, us, 6_000_001*us)},
			{Rule: perSecond(1, 7), Version: 2, Cost: 1, After: us, Want: yes(7, 0, 7*sec)},
		}},
		{"from a rate to none and back", []Step{
			{Rule: five, Version: 1, Cost: 5, Want: yes(5, 0, 5*sec)},
			{Rule: noRefill(5), Version: 2, Cost: 1, After: 1500 * ms, Want: yes(5, 0, never)},
			{Rule: noRefill(5), Version: 2, Cost: 1, After: time.Minute, Want: no(5, 0, never, never)},
			{Rule: five, Version: 3, Cost: 1, After: time.Minute, Want: no(5, 0, sec, 5*sec)},
			{Rule: five, Version: 3, Cost: 1, After: sec, Want: yes(5, 0, 5*sec)},
		}},
		{"from a very low rate to a very high one and back", []Step{
			{Rule: Rule{1, day, 3}, Version: 1, Cost: 2, Want: yes(3, 1, 2*day)},
			{Rule: perSecond(1_000_000, 1_000_000), Version: 2, Want: yes(1_000_000, 999_998, 2*us)},
			{Rule: Rule{1, day, 3}, Version: 3, After: us, Want: yes(3, 2, day)},
		}},
		{"a burst of 0 forgives everything", []Step{
			{Rule: five, Version: 1, Cost: 2, Want: yes(5, 3, 2*sec)},
			{Rule: perSecond(1, 0), Version: 2, Cost: 1, Want: no(0, 0, never, 0)},
			{Rule: five, Version: 3, Cost: 1, Want: yes(5, 4, sec)},
		}},
		{"a change of the limit cuts a debt off at the new burst", []Step{
			{Rule: five, Version: 1, Cost: 10, Charge: true, Want: yes(5, 0, 10*sec)},
			{Rule: perSecond(1, 8), Version: 2, Want: yes(8, 0, 8*sec)},
		}},
		{"a new version of the same limit keeps a debt", []Step{
			{Rule: five, Version: 1, Cost: 10, Charge: true, Want: yes(5, 0, 10*sec)},
			{Rule: five, Version: 2, Cost: 1, Want: no(5, 0, 6*sec, 10*sec)},
		}},
		{"the time until a bucket is full is its new limit's", []Step{
			{Rule: five, Version: 1, Cost: 5, Want: yes(5, 0, 5*sec)},
			{Rule: Rule{1, time.Hour, 5}, Version: 2, Cost: 1, Want: no(5, 0, time.Hour, 5*time.Hour)},
			{Rule: five, Version: 1, Cost: 1, After: time.Minute, Want: no(5, 0, 59*time.Minute, 5*time.Hour-time.Minute)},
		}},
	}
}
