package main

import (
	"context"
	"sync"

	"github.com/tokenring/tokenring/node/authority"
	"github.com/tokenring/tokenring/node/keeper"
	"github.com/tokenring/tokenring/node/members"
)

// everybody is the decider of a node whose store is one for all: every node decides
// everything, and holds nothing.
type everybody struct {
	onState func(keeper.State)

	mu    sync.Mutex // guards what follows
	state members.State
}

// SetView makes the node active as soon as gossip allows it.
func (e *everybody) SetView(v members.View) {
	s := keeper.State{Active: v.Self().Cleared}
	for _, m := range v {
		if m.State == members.Active {
			s.Nodes++
		}
		if !m.Self && m.State != members.Dead {
			s.Peers = append(s.Peers, authority.Member{ID: m.ID, Boot: m.Boot, Addr: m.Peer})
		}
	}
	e.mu.Lock()
	e.state = v.Self().State
	e.mu.Unlock()
	s.NotReady = e.NotReady()
	e.onState(s)
}

// NotReady says why no load balancer should send checks here, or "".
func (e *everybody) NotReady() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch e.state {
	case members.Active:
		return ""
	case members.Leaving:
		return "leaving the cluster"
	}
	return "joining the cluster"
}

func (*everybody) Counts() authority.Counts      { return authority.Counts{} }
func (*everybody) Places() []keeper.Place        { return nil }
func (*everybody) Start()                        {}
func (*everybody) Leave(context.Context) error   { return nil }
func (*everybody) Goodbye(context.Context) error { return nil }
func (*everybody) Close(context.Context) error   { return nil }
