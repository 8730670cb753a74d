package bucket

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"time"
)

// MaxCost is the largest number of tokens that one check may take or give back.
const MaxCost = 1_000_000_000

// maxCapacity bounds a bucket's capacity in units, so that a capacity, a debt of as
// much again and the distance between the two all fit in an int64.
const maxCapacity = 1 << 61

// Never is the duration of something that will not happen: a wait for a cost above
// the burst, or for a bucket that does not refill.
const Never time.Duration = -1

// ErrLimit is wrapped by every error that says why a limit cannot be represented.
var ErrLimit = errors.New("limit cannot be represented")

// A Limit is the rule that a bucket obeys: how many tokens it holds and how fast they
// come back. The zero Limit holds nothing and denies every cost above zero. Limits are
// comparable: two that were made from the same rule are equal.
//
// Everything is counted in units, so that no arithmetic ever rounds: a rate of n tokens
// in d nanoseconds, reduced by their greatest common divisor, makes one token d units
// and the refill n units a nanosecond.
type Limit struct {
	burst int64 // tokens
	n     int64 // units that come back in a nanosecond; 0 never refills
	d     int64 // units in a token; 0 only in the zero Limit
}

// NewLimit returns the limit that gives back tokens every per and holds burst of them.
// No tokens means a bucket that never refills; per is then ignored. The error wraps
// ErrLimit and says what is allowed.
func NewLimit(tokens int64, per time.Duration, burst int64) (Limit, error) {
	if tokens < 0 || burst < 0 {
		return Limit{}, fmt.Errorf("%w: rate and burst must not be negative", ErrLimit)
	}
	if tokens == 0 {
		tokens, per = 0, 1
	}
	if per <= 0 {
		return Limit{}, fmt.Errorf("%w: the time in which tokens come back must be above zero", ErrLimit)
	}
	n, d := tokens, int64(per)
	if n == 0 {
		n, d = 0, 1
	} else {
		g := gcd(n, d)
		n, d = n/g, d/g
	}
	if burst > maxCapacity/d {
		return Limit{}, fmt.Errorf("%w: burst %d is too large for this rate, at most %d", ErrLimit, burst, maxCapacity/d)
	}
	return Limit{burst: burst, n: n, d: d}, nil
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// Burst is the number of tokens in a full bucket.
func (l Limit) Burst() int64 { return l.burst }

// Rate returns the reduced rate: so many tokens come back in so long. No tokens means
// that the bucket never refills.
func (l Limit) Rate() (tokens int64, per time.Duration) {
	return l.n, time.Duration(max(l.d, 1))
}

// Refills reports whether tokens come back.
func (l Limit) Refills() bool { return l.n > 0 }

// FillTime is how long an empty bucket takes to fill, rounded up, or Never.
func (l Limit) FillTime() time.Duration { return l.wait(l.capacity()) }

// Share returns the part of the limit that one of n nodes may spend on its own when it
// cannot ask the others: the n-th part of the rate, and of the burst rounded up. A share
// whose exact rate cannot be represented gets the next lower one that can.
func (l Limit) Share(n int) Limit {
	if n <= 1 || l.burst == 0 {
		return l
	}
	parts := int64(n)
	share := Limit{burst: (l.burst-1)/parts + 1, n: l.n, d: max(l.d, 1)}
	if share.n == 0 {
		return share
	}
	g := gcd(share.n, parts)
	share.n, parts = share.n/g, parts/g
	// What is left of the division goes into the size of a token, as far as the capacity
	// allows, and what does not fit lowers the rate.
	if room := maxCapacity / share.burst / share.d; parts <= room {
		share.d *= parts
	} else {
		share.n = max(share.n/parts, 1)
	}
	return share
}

func (l Limit) capacity() int64 { return l.burst * l.d }

// wait is how long the given number of units takes to come back, rounded up.
func (l Limit) wait(units int64) time.Duration {
	switch {
	case units <= 0:
		return 0
	case l.n == 0:
		return Never
	}
	return time.Duration((units-1)/l.n + 1)
}

// convert turns a deficit counted in the units of the limit from into units of l,
// rounded up by less than a unit and never above the capacity of l.
func (l Limit) convert(deficit int64, from Limit) int64 {
	if l.d == from.d || deficit <= 0 {
		return min(deficit, l.capacity())
	}
	hi, lo := bits.Mul64(uint64(deficit), uint64(l.d))
	if hi >= uint64(from.d) {
		return l.capacity()
	}
	q, r := bits.Div64(hi, lo, uint64(from.d))
	if r > 0 {
		q++
	}
	if q > math.MaxInt64 {
		return l.capacity()
	}
	return min(int64(q), l.capacity())
}
