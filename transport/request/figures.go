package request

import (
	"time"

	"github.com/tokenring/tokenring/bucket"
	"github.com/tokenring/tokenring/node"
)

// Figures are the numbers of an answer as both fronts send them.
type Figures struct {
	Burst      int64         // tokens; -1 when unlimited
	Remaining  int64         // tokens; -1 when unlimited
	RetryAfter time.Duration // 0 when allowed, else the wait after which it could be, or bucket.Never
	ResetAfter time.Duration // until the bucket is full, or bucket.Never
}

// NewFigures returns the figures of an answer that is no error.
func NewFigures(a *node.Answer) Figures {
	if a.Unlimited {
		return Figures{Burst: -1, Remaining: -1}
	}
	f := Figures{Burst: a.Burst, Remaining: a.Remaining, RetryAfter: a.RetryAfter, ResetAfter: a.ResetAfter}
	if a.Degraded {
		// Nobody looked into the bucket, so all there is to say is when to ask again.
		f.Remaining, f.ResetAfter, f.RetryAfter = 0, 0, time.Second
	}
	if a.Allowed {
		f.RetryAfter = 0
	}
	return f
}

// InUnits returns a duration in whole units, rounded up, since whoever waits for so many
// must have waited long enough. bucket.Never is -1.
func InUnits(d, unit time.Duration) int64 {
	if d < 0 {
		return int64(bucket.Never)
	}
	n := int64(d / unit)
	if d%unit > 0 {
		n++
	}
	return n
}
