package node

import (
	"context"
	"sync"
	"time"

	"github.com/tokenring/tokenring/bucket"
	"github.com/tokenring/tokenring/node/authority"
	"github.com/tokenring/tokenring/node/limits"
	"github.com/tokenring/tokenring/ring"
)

// A batch is the checks of one call on their way. Batches are used again.
type batch struct {
	checks  []Check
	answers []Answer
	rules   []*limits.Rule // by check
	groups  []group        // one for each node; those beyond its length are spare
}

// A group is the checks of a batch that one node decides.
type group struct {
	to     uint64 // boot of the node, 0 for nobody
	takes  []bucket.Take
	outs   []bucket.Outcome
	routes []authority.Route // on which a take was asked last
	index  []int             // of the check that a take is for
	by     map[int]string    // ids of those that decided instead, by take
	lost   map[int]bool      // takes whose answer was lost once
}

func (b *batch) reset(checks []Check, answers []Answer) {
	b.checks, b.answers = checks, answers
	b.rules = append(b.rules[:0], make([]*limits.Rule, len(checks))...)
	b.groups = b.groups[:0]
}

// drop lets go of what the batch refers to before it waits to be used again.
func (b *batch) drop() {
	b.checks, b.answers = nil, nil
	clear(b.rules)
	for i := range b.groups {
		clear(b.groups[i].takes)
		clear(b.groups[i].outs)
	}
}

// add puts a take into the group of the node that it goes to.
func (b *batch) add(r authority.Route, index int, t bucket.Take) {
	for i := range b.groups {
		if b.groups[i].to == r.To {
			b.groups[i].add(r, index, t)
			return
		}
	}
	if len(b.groups) < cap(b.groups) {
		b.groups = b.groups[:len(b.groups)+1]
	} else {
		b.groups = append(b.groups, group{})
	}
	g := &b.groups[len(b.groups)-1]
	g.reset(r.To)
	g.add(r, index, t)
}

func (g *group) reset(to uint64) {
	*g = group{to: to, takes: g.takes[:0], outs: g.outs[:0], routes: g.routes[:0], index: g.index[:0]}
}

func (g *group) add(r authority.Route, index int, t bucket.Take) {
	g.takes = append(g.takes, t)
	g.outs = append(g.outs, bucket.Outcome{})
	g.routes = append(g.routes, r)
	g.index = append(g.index, index)
}

// adopt takes over the outcomes of takes that were asked again, of a node with that id.
func (g *group) adopt(again *group, id string) {
	if g.by == nil {
		g.by = map[int]string{}
	}
	for j, i := range again.index {
		g.outs[i], g.by[i] = again.outs[j], id
	}
}

func (g *group) lose(i int) {
	if g.lost == nil {
		g.lost = map[int]bool{}
	}
	g.lost[i] = true
}

// Check decides checks: answers[i] for checks[i], in order for each bucket. It takes no
// longer than the time budget.
func (n *Node) Check(ctx context.Context, checks []Check, answers []Answer) {
	b := n.batches.Get().(*batch)
	b.reset(checks, answers)
	for i := range checks {
		n.place(b, i)
	}
	n.decideAll(ctx, b)
	for i := range answers {
		n.metrics.count(&answers[i])
	}
	b.drop()
	n.batches.Put(b)
}

// place resolves the limit of a check and puts it into the group of where it goes, or
// answers it, if its limit needs no bucket.
func (n *Node) place(b *batch, i int) {
	c, a := &b.checks[i], &b.answers[i]
	rule, name := n.resolve(c)
	if rule == nil {
		*a = Answer{Limit: UnknownLimit, Key: c.Key, Node: n.config.ID, Err: &UnknownLimitError{Name: c.Limit}}
		return
	}
	*a = Answer{Limit: rule.Name, Key: c.Key, Node: n.config.ID, Unlimited: rule.Unlimited, FillTime: rule.Limit.FillTime()}
	switch {
	case rule.Unlimited:
		a.Allowed = true
	case rule.Limit.Burst() == 0:
		a.Allowed = c.Cost <= 0
		if !a.Allowed {
			a.RetryAfter = bucket.Never
		}
	default:
		b.rules[i] = rule
		partition := ring.Partition(name, c.Key)
		b.add(n.holders.Route(partition), i, bucket.Take{
			Partition: partition, Name: name, Key: c.Key,
			Limit: rule.Limit, Version: rule.Version, Cost: c.Cost,
		})
	}
}

// resolve returns the rule of a check and the name that its bucket goes by. The bucket of
// an inline limit goes by its figures, so that other figures mean another bucket.
func (n *Node) resolve(c *Check) (rule *limits.Rule, name string) {
	if c.Inline {
		return &limits.Rule{Name: InlineLimit, Limit: c.Rule, OnFailure: n.config.InlinePolicy}, inlineName(c.Rule)
	}
	name = c.Limit
	if name == "" {
		name = DefaultLimit
	}
	return n.rules.Resolve(name, c.Key), name
}

// decideAll decides the groups of a batch: those that another node decides at the same
// time as each other.
func (n *Node) decideAll(ctx context.Context, b *batch) {
	if len(b.groups) == 1 {
		n.decide(ctx, b, &b.groups[0])
		return
	}
	var asked sync.WaitGroup
	for i := range b.groups {
		if g := &b.groups[i]; g.to != n.config.Boot {
			asked.Go(func() { n.decide(ctx, b, g) })
		}
	}
	for i := range b.groups {
		if g := &b.groups[i]; g.to == n.config.Boot {
			n.decide(ctx, b, g)
		}
	}
	asked.Wait()
}

// decide gets a decision for each take of a group and writes the answers.
func (n *Node) decide(ctx context.Context, b *batch, g *group) {
	begin := time.Now()
	n.seek(ctx, b, g)
	id := n.idOf(g.to)
	var undecided []int
	for i, at := range g.index {
		a := &b.answers[at]
		if g.outs[i].Err != nil {
			undecided = append(undecided, i)
			continue
		}
		a.Decision, a.Node = g.outs[i].Decision, id
		if other, ok := g.by[i]; ok {
			a.Node = other
		}
	}
	if len(undecided) > 0 {
		n.fail(ctx, b, g, undecided, begin.Add(n.config.Budget))
	}
	n.metrics.took(n.path(g.to), time.Since(begin))
}

// path is what the duration of a decision is counted under.
func (n *Node) path(to uint64) path {
	switch {
	case to != n.config.Boot:
		return pathForwarded
	case n.config.Holders == nil:
		return pathRedis
	}
	return pathLocal
}
