// Package loadgen asks a rate limiter as fast as it answers, and measures that.
//
//	callers, each on its own:  keys ─> Asker.Ask ─> Tally, latency
//	                           again at once, until the time is up
//	Run adds up what ended between the end of the warm-up and the end
//
// It is a closed loop: a caller asks again when it has its answer, so the rate is what the
// limiter gives to so many callers, and a latency says nothing about a rate that was not
// offered. A caller reads the clock once a call and writes nothing that others read, so
// what is measured is hardly the measuring; Result.CPU says how much of it is.
package loadgen

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// An Asker asks for one token of each key and adds what it was answered to the tally. It
// belongs to one caller.
type Asker interface {
	Ask(ctx context.Context, keys []string, t *Tally) error
}

// A Tally counts checks by their answer.
type Tally struct {
	Allowed  int64 `json:"allowed"`
	Denied   int64 `json:"denied"`
	Degraded int64 `json:"degraded"` // of the allowed and denied: by the failure policy
	Errors   int64 `json:"errors"`
}

// Count counts one answer.
func (t *Tally) Count(allowed, degraded bool) {
	if allowed {
		t.Allowed++
	} else {
		t.Denied++
	}
	if degraded {
		t.Degraded++
	}
}

func (t *Tally) add(other Tally) {
	t.Allowed += other.Allowed
	t.Denied += other.Denied
	t.Degraded += other.Degraded
	t.Errors += other.Errors
}

// Config says how to ask. Zero values stand for the defaults.
type Config struct {
	Callers  int           // that ask at the same time; 64
	Batch    int           // checks in a call; 1
	Warmup   time.Duration // that is not measured
	Duration time.Duration // that is; 10 s
	Keys     Keys
	// Open returns the asker of a caller, by its number.
	Open func(caller int) (Asker, error)
	// Measured is called when the measured time begins and when it has ended.
	Measured func(begin bool)
}

func (c Config) withDefaults() Config {
	c.Callers = cmp.Or(c.Callers, 64)
	c.Batch = cmp.Or(c.Batch, 1)
	c.Duration = cmp.Or(c.Duration, 10*time.Second)
	if c.Measured == nil {
		c.Measured = func(bool) {}
	}
	return c
}

// Result is what was measured.
type Result struct {
	Tally
	Calls    int64         // that ended in the measured time
	Duration time.Duration // of it
	CPU      time.Duration // that this process has used in it
	Err      error         // the first of the errors, if there were any

	latency *hdrhistogram.Histogram // of calls, in nanoseconds
}

// Rate is how many checks were answered in a second.
func (r *Result) Rate() float64 { return float64(r.Allowed+r.Denied) / r.Duration.Seconds() }

// CPUShare is how many cores this process kept busy.
func (r *Result) CPUShare() float64 { return r.CPU.Seconds() / r.Duration.Seconds() }

// Latency is the time that a part of the calls took at the most, by its percentage.
func (r *Result) Latency(percent float64) time.Duration {
	return time.Duration(r.latency.ValueAtPercentile(percent))
}

// answerTimeout is how long an answer may take before it counts as an error.
const answerTimeout = 5 * time.Second

// longest is the longest latency that is told from longer ones, in nanoseconds.
const longest = int64(time.Minute)

// newHistogram counts latencies from a microsecond on, to two digits.
func newHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(int64(time.Microsecond), longest, 2)
}

// pause is how long a caller waits after an error, so that one that is quick does not turn
// into a load of its own.
const pause = 10 * time.Millisecond

// Run asks until the time is up or ctx ends.
func Run(ctx context.Context, c Config) (*Result, error) {
	c = c.withDefaults()
	callers := make([]*caller, c.Callers)
	for i := range callers {
		asker, err := c.Open(i)
		if err != nil {
			return nil, fmt.Errorf("open caller: %w", err)
		}
		callers[i] = &caller{asker: asker, next: c.Keys.draw(uint64(i)), keys: make([]string, c.Batch), latency: newHistogram()}
	}
	begin := time.Now().Add(c.Warmup)
	end := begin.Add(c.Duration)
	ctx, cancel := context.WithCancel(ctx) // a deadline would travel with each call over gRPC
	defer cancel()
	r := &Result{Duration: c.Duration, latency: newHistogram()}
	var running sync.WaitGroup
	for _, k := range callers {
		running.Go(func() { k.run(ctx, begin, end) })
	}
	waitUntil(ctx, begin)
	before := cpuTime()
	c.Measured(true)
	waitUntil(ctx, end)
	r.CPU = cpuTime() - before
	c.Measured(false)
	stopped := context.Cause(ctx)
	cancel()
	running.Wait()
	if stopped != nil {
		return nil, fmt.Errorf("stopped before the end: %w", stopped)
	}
	for _, k := range callers {
		r.add(k.tally)
		r.Calls += k.calls
		r.latency.Merge(k.latency)
		r.Err = cmp.Or(r.Err, k.err)
	}
	return r, nil
}

func waitUntil(ctx context.Context, at time.Time) {
	t := time.NewTimer(time.Until(at))
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

type caller struct {
	asker   Asker
	next    func() string
	keys    []string
	tally   Tally
	calls   int64
	latency *hdrhistogram.Histogram
	err     error
}

func (k *caller) run(ctx context.Context, begin, end time.Time) {
	for last := time.Now(); ctx.Err() == nil; {
		for i := range k.keys {
			k.keys[i] = k.next()
		}
		var t Tally
		err := k.asker.Ask(ctx, k.keys, &t)
		now := time.Now()
		took := now.Sub(last)
		switch {
		case now.Before(begin):
		case now.Before(end):
			k.record(&t, took, err)
		case took < answerTimeout:
			return // it was under way when the time was up
		default:
			k.record(&t, took, fmt.Errorf("no answer for %v", took.Round(time.Millisecond)))
			return
		}
		if last = now; err != nil {
			waitUntil(ctx, now.Add(pause))
			last = time.Now()
		}
	}
}

func (k *caller) record(t *Tally, took time.Duration, err error) {
	if err != nil {
		t.Errors = int64(len(k.keys)) - t.Allowed - t.Denied
		k.err = cmp.Or(k.err, err)
	}
	k.tally.add(*t)
	k.calls++
	// It fails beyond the range, which no call reaches.
	_ = k.latency.RecordValue(min(int64(took), longest))
}
