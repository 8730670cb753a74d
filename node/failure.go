package node

import (
	"context"
	"errors"
	"time"

	"github.com/tokenring/tokenring/bucket"
	"github.com/tokenring/tokenring/node/limits"
)

// degradedRetry is when a client that a failure policy has denied should try again.
const degradedRetry = time.Second

// fail answers the takes of a group that nobody has decided in time, each by the failure
// policy of its limit. Such an answer knows nothing of the bucket and gives no figures.
// A caller that has given up, or has asked for a limit that the store cannot represent,
// gets its own error: nothing has failed then.
func (n *Node) fail(ctx context.Context, b *batch, g *group, undecided []int, deadline time.Time) {
	var redis group
	for _, i := range undecided {
		a, rule, take := &b.answers[g.index[i]], b.rules[g.index[i]], &g.takes[i]
		if ctx.Err() != nil {
			a.Err = ctx.Err()
			continue
		}
		if errors.Is(g.outs[i].Err, bucket.ErrLimit) {
			a.Err = g.outs[i].Err
			continue
		}
		n.metrics.degraded(rule)
		a.Degraded = true
		a.Decision = bucket.Decision{Burst: rule.Limit.Burst(), Allowed: true}
		switch {
		case rule.OnFailure == limits.Deny:
			a.Allowed = take.Cost <= 0
		case rule.OnFailure == limits.Local:
			a.Allowed = n.local.take(take, n.peers.Load())
		case rule.OnFailure == limits.Redis:
			redis.add(g.routes[i], g.index[i], *take)
		}
		a.RetryAfter = retryAfter(a.Allowed)
	}
	if len(redis.takes) == 0 {
		return
	}
	ctx, cancel := context.WithDeadlineCause(ctx, deadline, errBudget)
	defer cancel()
	n.config.Redis.Take(ctx, redis.takes, redis.outs)
	for i, at := range redis.index {
		// If Redis cannot be asked either, the check is allowed, as by the default policy.
		a := &b.answers[at]
		a.Allowed = redis.outs[i].Err != nil || redis.outs[i].Allowed
		a.RetryAfter = retryAfter(a.Allowed)
	}
}

func retryAfter(allowed bool) time.Duration {
	if allowed {
		return 0
	}
	return degradedRetry
}
