package node

import (
	"context"
	"errors"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/tokenring/tokenring/bucket"
	"github.com/tokenring/tokenring/node/limits"
)

// errBudget is why a context ended that bounds what may be waited for. One that ended for
// another reason was the caller's, who has given up: that says nothing about who was
// asked.
var errBudget = errors.New("no answer within the time budget")

var errGaveUp = errors.New("the caller has given up")

// blame turns what came out of asking into what a breaker should know. Whoever has
// answered anything is there: what it has not answered in time, it had too much of; and a
// limit that a store cannot represent is no fault of the store.
func blame(ctx context.Context, outs []bucket.Outcome) error {
	if ctx.Err() != nil && !errors.Is(context.Cause(ctx), errBudget) {
		return errGaveUp
	}
	for i := range outs {
		if outs[i].Err == nil || errors.Is(outs[i].Err, bucket.ErrLimit) {
			return nil
		}
	}
	return outs[0].Err
}

// forward asks the holder of a group. What was lost with the connection is asked once
// more, of whoever holds it now, within the same time.
func (n *Node) forward(ctx context.Context, t *table, b *batch, g *group) {
	asking, cancel := context.WithTimeoutCause(ctx, n.askBudget(b, g), errBudget)
	defer cancel()
	n.ask(asking, t, g)
	if g.holder == nobody || asking.Err() != nil {
		return
	}
	now := n.table.Load()
	var again batch
	for i := range g.outs {
		if errors.Is(g.outs[i].Err, ErrLost) {
			again.add(now.holderOf(g.takes[i].Partition), i, g.takes[i])
		}
	}
	for i := range again.groups {
		retry := &again.groups[i]
		if now.isSelf(retry.holder) {
			n.config.Store.Take(asking, retry.takes, retry.outs)
		} else {
			n.ask(asking, now, retry)
		}
		if g.by == nil {
			g.by = map[int]string{}
		}
		for j, at := range retry.index {
			g.outs[at], g.by[at] = retry.outs[j], now.idOf(retry.holder)
		}
	}
}

// askBudget is the time for asking the holder: all of it, or half when the policy redis
// may have to ask as well.
func (n *Node) askBudget(b *batch, g *group) time.Duration {
	for _, at := range g.index {
		if b.rules[at].OnFailure == limits.Redis {
			return n.config.Budget / 2
		}
	}
	return n.config.Budget
}

// ask sends the takes of a group to its holder and waits for the outcomes.
func (n *Node) ask(ctx context.Context, t *table, g *group) {
	if g.holder == nobody {
		setErr(g.outs, errNoHolder)
		return
	}
	p := t.peers[g.holder]
	err := p.breaker.do(func() error {
		n.config.Peers.Take(ctx, p.Peer, g.takes, g.outs)
		return blame(ctx, g.outs)
	})
	if isOpen(err) {
		setErr(g.outs, err)
	}
	p.counts.count(err)
}

func setErr(outs []bucket.Outcome, err error) {
	for i := range outs {
		outs[i] = bucket.Outcome{Err: err}
	}
}

// A breaker spares callers the wait for somebody who does not answer: after a few
// failures in a row everything fails at once, but for one try in every pause.
type breaker struct {
	circuit *gobreaker.CircuitBreaker[struct{}]
}

const (
	breakerFailures = 5
	breakerPause    = 200 * time.Millisecond
)

func newBreaker() *breaker {
	return &breaker{gobreaker.NewCircuitBreaker[struct{}](gobreaker.Settings{
		Timeout:     breakerPause,
		ReadyToTrip: func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= breakerFailures },
		IsExcluded:  func(err error) bool { return errors.Is(err, errGaveUp) },
	})}
}

func (b *breaker) do(f func() error) error {
	_, err := b.circuit.Execute(func() (struct{}, error) { return struct{}{}, f() })
	return err
}

func isOpen(err error) bool {
	return errors.Is(err, gobreaker.ErrOpenState) || errors.Is(err, gobreaker.ErrTooManyRequests)
}

// Guard bounds the time that a store across the network may take, and gives it a breaker.
func Guard(s Store, budget time.Duration) Store {
	return &guarded{store: s, budget: budget, breaker: newBreaker()}
}

type guarded struct {
	store   Store
	budget  time.Duration
	breaker *breaker
}

func (g *guarded) Take(ctx context.Context, takes []bucket.Take, outs []bucket.Outcome) {
	ctx, cancel := context.WithTimeoutCause(ctx, g.budget, errBudget)
	defer cancel()
	err := g.breaker.do(func() error {
		g.store.Take(ctx, takes, outs)
		return blame(ctx, outs)
	})
	if isOpen(err) {
		setErr(outs, err)
	}
}
