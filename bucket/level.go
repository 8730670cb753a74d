package bucket

import (
	"math/bits"
	"time"
)

// A Decision is the answer to one check.
type Decision struct {
	Allowed    bool
	Burst      int64         // tokens in a full bucket of the limit that decided
	Remaining  int64         // whole tokens left, from 0 to Burst
	RetryAfter time.Duration // until this cost could be allowed: 0 when it was, or Never
	ResetAfter time.Duration // until the bucket is full, or Never
}

// level is the state of one bucket: how many units it held at a moment of the store's
// clock. It is below zero while a debt is being paid back.
type level struct {
	units int64
	at    int64 // nanoseconds since the store was made
}

// full is the level of a bucket that nobody has touched.
func full(l Limit, now int64) level { return level{units: l.capacity(), at: now} }

// refill moves the level forward to now. The product of time and rate is taken in 128
// bits and compared with what is missing, so nothing can overflow however long the bucket
// was idle; and since a nanosecond is worth a whole number of units, nothing is rounded
// away when the moment moves. A clock that stood still or went back changes nothing.
func (v *level) refill(l Limit, now int64) {
	if now <= v.at {
		return
	}
	elapsed := uint64(now - v.at)
	v.at = now
	missing := l.capacity() - v.units
	if missing <= 0 {
		v.units = l.capacity()
		return
	}
	if hi, lo := bits.Mul64(elapsed, uint64(l.n)); hi != 0 || lo >= uint64(missing) {
		v.units = l.capacity()
	} else {
		v.units += int64(lo)
	}
}

// take decides one check of a refilled bucket and charges it.
func (v *level) take(l Limit, cost int64) Decision {
	d := Decision{Burst: l.burst}
	switch {
	case cost > l.burst:
		d.RetryAfter = Never
	case cost < 0:
		d.Allowed = true
		v.give(l, -cost)
	case cost == 0:
		d.Allowed = true
	case v.units >= cost*l.d:
		d.Allowed = true
		v.units -= cost * l.d
	default:
		d.RetryAfter = l.wait(cost*l.d - v.units)
	}
	if v.units > 0 {
		d.Remaining = v.units / l.d
	}
	d.ResetAfter = l.wait(l.capacity() - v.units)
	return d
}

// give puts tokens back, never above full.
func (v *level) give(l Limit, tokens int64) {
	if missing := l.capacity() - v.units; l.d == 0 || tokens > missing/l.d {
		v.units = l.capacity()
	} else {
		v.units += tokens * l.d
	}
}

// charge takes tokens whether the bucket has them or not: they were already spent
// elsewhere. The debt ends at one full bucket. Tokens below zero are given back.
func (v *level) charge(l Limit, tokens int64) {
	switch capacity := l.capacity(); {
	case tokens < 0:
		v.give(l, -tokens)
	case tokens > 2*l.burst:
		v.units = -capacity
	default:
		v.units = max(v.units-tokens*l.d, -capacity)
	}
}
