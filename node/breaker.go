package node

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tokenring/tokenring/bucket"
)

const (
	// breakAfter is how long everything must have failed before a breaker opens: a moment
	// in which one process stood still is no reason. That of another node waits for a time
	// budget at least, in which others may have taken over.
	breakAfter = 100 * time.Millisecond
	// probeEvery is how often an open breaker is probed.
	probeEvery = 50 * time.Millisecond
)

var (
	// errBudget is why a context ended that bounds what may be waited for. One that ended
	// for another reason was the caller's, who has given up: that says nothing about who
	// was asked.
	errBudget = errors.New("no answer within the time budget")
	errNoSign = errors.New("nothing was learned about who was asked")
	errOpen   = errors.New("not asked, since it has not answered lately")
)

// A breaker spares callers the wait for somebody who does not answer: once everything has
// failed for a while it is open, and nobody is asked. The node probes it until there is an
// answer, so that it closes whether or not there are callers, and none of them pays for
// finding out. (A breaker that lets a caller through instead fails all others at that
// moment, however long ago the other side has recovered.)
type breaker struct {
	open    atomic.Bool
	since   atomic.Int64 // of the first failure in a row, by the breaker's clock; 0 is none
	start   time.Time
	after   time.Duration
	probing atomic.Bool
}

// newBreaker returns a breaker that opens once everything has failed for that time.
func newBreaker(after time.Duration) *breaker { return &breaker{start: time.Now(), after: after} }

func (b *breaker) isOpen() bool { return b.open.Load() }

// learn takes note of what came out of asking, as blame puts it.
func (b *breaker) learn(err error) {
	switch {
	case errors.Is(err, errNoSign):
	case err == nil:
		if b.since.Load() != 0 {
			b.since.Store(0)
			b.open.Store(false)
		}
	default:
		now := int64(time.Since(b.start)) + 1
		if !b.since.CompareAndSwap(0, now) && now-b.since.Load() >= int64(b.after) {
			b.open.Store(true)
		}
	}
}

// blame turns what came out of asking into what a breaker should know. Whoever has
// answered anything is there: what it has not answered in time, it had too much of. A
// limit that a store cannot represent says nothing about the store.
func blame(ctx context.Context, outs []bucket.Outcome) error {
	if ctx.Err() != nil && !errors.Is(context.Cause(ctx), errBudget) {
		return errNoSign
	}
	err := errNoSign
	for i := range outs {
		switch {
		case outs[i].Err == nil, isMoved(outs[i].Err):
			return nil
		case !errors.Is(outs[i].Err, bucket.ErrLimit):
			err = outs[i].Err
		}
	}
	return err
}

func isMoved(err error) bool {
	_, ok := errors.AsType[*MovedError](err)
	return ok
}

// probe is a take that changes nothing: it looks at a bucket that nobody has.
func probe() []bucket.Take {
	limit, _ := bucket.NewLimit(0, 0, 1) // it can be represented everywhere
	return []bucket.Take{{Name: "probe ", Key: "", Limit: limit}}
}

// A probed is somebody behind a breaker who can be probed.
type probed struct {
	breaker *breaker
	take    func(context.Context, []bucket.Take, []bucket.Outcome)
}

// revive probes everybody whose breaker is open, until the node closes.
func (n *Node) revive() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var probes sync.WaitGroup
	defer probes.Wait()
	tick := time.NewTicker(probeEvery)
	defer tick.Stop()
	for {
		select {
		case <-n.stop:
			cancel()
			return
		case <-tick.C:
		}
		for _, p := range n.probed() {
			if !p.breaker.isOpen() || !p.breaker.probing.CompareAndSwap(false, true) {
				continue
			}
			probes.Go(func() {
				defer p.breaker.probing.Store(false)
				ctx, cancel := context.WithTimeoutCause(ctx, n.config.Budget, errBudget)
				defer cancel()
				outs := make([]bucket.Outcome, 1)
				p.take(ctx, probe(), outs)
				p.breaker.learn(blame(ctx, outs))
			})
		}
	}
}

// probed returns all that have a breaker.
func (n *Node) probed() []probed {
	var all []probed
	for _, s := range []Store{n.config.Store, n.config.Redis} {
		if g, ok := s.(*guarded); ok {
			all = append(all, probed{g.breaker, g.store.Take})
		}
	}
	for _, p := range n.peers.Load().byBoot {
		all = append(all, probed{p.breaker, func(ctx context.Context, takes []bucket.Take, outs []bucket.Outcome) {
			n.config.Peers.Take(ctx, p.Peer, takes, outs)
		}})
	}
	return all
}

// Guard bounds the time that a store across the network may take, and gives it a breaker.
// The node that it belongs to probes it.
func Guard(s Store, budget time.Duration) Store {
	return &guarded{store: s, budget: budget, breaker: newBreaker(breakAfter)}
}

type guarded struct {
	store   Store
	budget  time.Duration
	breaker *breaker
}

func (g *guarded) Take(ctx context.Context, takes []bucket.Take, outs []bucket.Outcome) {
	if g.breaker.isOpen() {
		setErr(outs, errOpen)
		return
	}
	ctx, cancel := context.WithTimeoutCause(ctx, g.budget, errBudget)
	defer cancel()
	g.store.Take(ctx, takes, outs)
	g.breaker.learn(blame(ctx, outs))
}
