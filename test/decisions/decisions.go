// Package decisions is a table of what a token bucket must answer. Every store of
// buckets is tested with it, so that all of them decide alike.
//
// All times are whole microseconds. A store that counts nanoseconds may ask for less
// waiting than the table does, but the table's figures are its figures rounded up to
// whole microseconds.
package decisions

import (
	"time"

	"github.com/tokenring/tokenring/bucket"
)

// A Case is the life of one bucket, from full on.
type Case struct {
	Name  string
	Steps []Step
}

// A Step is one check, and what is to be answered.
type Step struct {
	After   time.Duration // since the step before
	Rule    Rule
	Version uint64
	Cost    int64
	Charge  bool
	Want    bucket.Decision
}

// A Rule is a limit: so many tokens come back in so long, and burst are held.
type Rule struct {
	Tokens int64
	Per    time.Duration
	Burst  int64
}

// Take returns the step's check of a bucket.
func (s Step) Take(name, key string) (bucket.Take, error) {
	l, err := bucket.NewLimit(s.Rule.Tokens, s.Rule.Per, s.Rule.Burst)
	return bucket.Take{
		Name: name, Key: key, Limit: l, Version: s.Version, Cost: s.Cost, Charge: s.Charge,
	}, err
}

// IdleTTL is the time of silence after which the table wants a bucket that never
// refills to be gone. It is the default of every store.
const IdleTTL = time.Hour

// RoundUp rounds a decision's durations up to whole microseconds.
func RoundUp(d bucket.Decision) bucket.Decision {
	d.RetryAfter = roundUp(d.RetryAfter)
	d.ResetAfter = roundUp(d.ResetAfter)
	return d
}

func roundUp(d time.Duration) time.Duration {
	if rest := d % time.Microsecond; rest > 0 {
		return d - rest + time.Microsecond
	}
	return d
}
