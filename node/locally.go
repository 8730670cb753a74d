package node

import (
	"context"
	"sync"
	"time"

	"github.com/tokenring/tokenring/bucket"
)

// settleEvery is how often what the policy local has spent is charged to the real buckets.
const settleEvery = 250 * time.Millisecond

// locally decides by the failure policy local: from a bucket of this node's share of the
// limit. What it lets through is owed to the real bucket and charged there once its
// holder can be asked again.
type locally struct {
	buckets *bucket.Store

	mu   sync.Mutex // guards what follows
	owed map[bucketID]bucket.Take
	most int
}

type bucketID struct{ name, key string }

func newLocally(maxKeys int) *locally {
	buckets := bucket.New(bucket.Config{Shards: 64, MaxKeys: maxKeys})
	return &locally{buckets: buckets, owed: map[bucketID]bucket.Take{}, most: buckets.MaxKeys()}
}

// take decides a check from the share of one of the nodes.
func (l *locally) take(t *bucket.Take, among *peers) bool {
	share := *t
	share.Partition %= l.buckets.Shards()
	share.Limit, share.Version = t.Limit.Share(among.nodes), among.version
	if !l.buckets.Take(&share).Allowed {
		return false
	}
	if t.Cost != 0 {
		l.owe(*t)
	}
	return true
}

// owe notes tokens that were spent or given back. Beyond the most keys it forgets them,
// in favour of the client.
func (l *locally) owe(t bucket.Take) {
	l.mu.Lock()
	defer l.mu.Unlock()
	id := bucketID{t.Name, t.Key}
	if before, ok := l.owed[id]; ok {
		t.Cost = min(max(t.Cost+before.Cost, -bucket.MaxCost), bucket.MaxCost)
	} else if len(l.owed) >= l.most {
		return
	}
	t.Charge = true
	l.owed[id] = t
}

func (l *locally) takeOwed() map[bucketID]bucket.Take {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.owed) == 0 {
		return nil
	}
	owed := l.owed
	l.owed = map[bucketID]bucket.Take{}
	return owed
}

// settle charges what is owed to the real buckets, until the node closes.
func (n *Node) settle() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	tick := time.NewTicker(settleEvery)
	defer tick.Stop()
	for {
		select {
		case <-n.stop:
			return
		case <-tick.C:
			n.settleOnce(ctx)
		}
	}
}

// settleOnce charges everything that is owed, and owes again what could not be charged.
func (n *Node) settleOnce(ctx context.Context) {
	const atOnce = 512
	var b batch
	for _, take := range n.local.takeOwed() {
		b.add(n.holders.Route(take.Partition), 0, take)
	}
	for i := range b.groups {
		g := &b.groups[i]
		for from := 0; from < len(g.takes); from += atOnce {
			to := min(from+atOnce, len(g.takes))
			n.charge(ctx, &group{to: g.to, takes: g.takes[from:to], outs: g.outs[from:to]})
		}
	}
}

func (n *Node) charge(ctx context.Context, g *group) {
	ctx, cancel := context.WithTimeoutCause(ctx, n.config.Budget, errBudget)
	defer cancel()
	n.ask(ctx, g)
	for i := range g.outs {
		if g.outs[i].Err != nil {
			n.local.owe(g.takes[i])
		}
	}
}
