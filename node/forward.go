package node

import (
	"context"
	"errors"
	"time"

	"github.com/tokenring/tokenring/bucket"
	"github.com/tokenring/tokenring/node/limits"
)

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
