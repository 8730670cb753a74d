package node

import (
	"context"
	"errors"
	"time"

	"github.com/tokenring/tokenring/bucket"
	"github.com/tokenring/tokenring/node/limits"
)

// redial is how long to wait before a node is asked again whose stream is not open.
const redial = 5 * time.Millisecond

// seek asks the holder of a group, and whoever holds it by then for what was not decided,
// until all is, or the time is up.
func (n *Node) seek(ctx context.Context, b *batch, g *group) {
	changed := n.holders.Changed()
	if g.to == n.config.Boot {
		n.takeHere(ctx, g.takes, g.outs)
		if !n.mayMove(g) {
			return
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, n.askBudget(b, g), errBudget)
	defer cancel()
	if g.to != n.config.Boot {
		n.ask(ctx, g)
	}
	for woken := false; n.mayMove(g) && ctx.Err() == nil; {
		now := n.holders.Changed()
		again, down := n.askAgain(g, woken || now != changed)
		changed, woken = now, false
		for i := range again.groups {
			n.ask(ctx, &again.groups[i])
			g.adopt(&again.groups[i], n.idOf(again.groups[i].to))
		}
		if len(again.groups) == 0 {
			woken = wait(ctx, changed, down)
		}
	}
}

// wait waits for a change, or for a moment if a node is to be dialed again, and reports
// whether that is over.
func wait(ctx context.Context, changed <-chan struct{}, down bool) bool {
	var dialed <-chan time.Time
	if down {
		t := time.NewTimer(redial)
		defer t.Stop()
		dialed = t.C
	}
	select {
	case <-ctx.Done():
	case <-changed:
	case <-dialed:
		return true
	}
	return false
}

// mayMove reports whether anything of a group that was not decided may be, on another route
// or later.
func (n *Node) mayMove(g *group) bool {
	for i := range g.outs {
		if g.outs[i].Err != nil && n.takeMayMove(g, i) {
			return true
		}
	}
	return false
}

func (n *Node) takeMayMove(g *group, i int) bool {
	err := g.outs[i].Err
	switch {
	case errors.Is(err, ErrLost):
		return !g.lost[i] // once
	case errors.Is(err, errOpen):
		return n.holders.Route(g.takes[i].Partition) != g.routes[i]
	}
	return isMoved(err) || err == bucket.ErrFrozen || err == bucket.ErrNotHeld || err == errNoHolder || errors.Is(err, ErrDown)
}

// askAgain groups what was not decided by who holds it now, as far as there is a reason to
// ask: there is another route, the connection was lost, or something has changed that this
// node waits for. Down says that it waits for a stream to be opened.
func (n *Node) askAgain(g *group, changed bool) (again batch, down bool) {
	for i := range g.outs {
		err := g.outs[i].Err
		if err == nil || !n.takeMayMove(g, i) {
			continue
		}
		if moved, ok := errors.AsType[*MovedError](err); ok && moved.To.After(g.routes[i].Epoch) {
			n.holders.Missed(g.takes[i].Partition, moved.To)
		}
		r := n.holders.Route(g.takes[i].Partition)
		isDown := errors.Is(err, ErrDown)
		lost := errors.Is(err, ErrLost)
		if r != g.routes[i] || lost || changed && (isDown || r.To == n.config.Boot) {
			if lost {
				g.lose(i)
			}
			g.routes[i] = r
			again.add(r, i, g.takes[i])
		}
		down = down || isDown
	}
	return again, down
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

// ask sends the takes of a group to where they go and waits for the outcomes.
func (n *Node) ask(ctx context.Context, g *group) {
	if g.to == n.config.Boot {
		n.takeHere(ctx, g.takes, g.outs)
		return
	}
	if g.to == 0 {
		setErr(g.outs, errNoHolder)
		return
	}
	p := n.peers.Load().byBoot[g.to]
	if p == nil {
		setErr(g.outs, ErrDown)
		return
	}
	if p.breaker.isOpen() {
		setErr(g.outs, errOpen)
		p.counts.count(errOpen)
		return
	}
	n.config.Peers.Take(ctx, p.Peer, g.takes, g.outs)
	err := blame(ctx, g.outs)
	p.breaker.learn(err)
	p.counts.count(err)
}

func setErr(outs []bucket.Outcome, err error) {
	for i := range outs {
		outs[i] = bucket.Outcome{Err: err}
	}
}
