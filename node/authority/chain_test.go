package authority

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// A partition goes from one node to the next and on to a third, and the first hears of the
// third before it hears that the second had it. What it decided is in what went on, so it
// gives nothing to be merged.
func TestHolderAfterNextIsHeardFirst(t *testing.T) {
	owner := "a"
	m := New(Config{
		Self: Member{ID: "a", Boot: 1, State: Joining}, Partitions: 1, Rand: rand.New(rand.NewPCG(1, 1)),
		Place: func([]string, string) (owners, heirs []string) { return []string{owner}, []string{""} },
	})
	b, c := Member{ID: "b", Boot: 2, State: Active}, Member{ID: "c", Boot: 3, State: Active}
	now := time.Duration(0)
	m.Gossip(now, View{Addr: "a:1", Members: []Listed{{Member: b}, {Member: c}}, Cleared: true})
	for _, x := range []Member{b, c} {
		m.Up(now, x.Boot)
		m.Hear(now, x.Boot, Hello{Members: []Member{b, c}, Last: make([]Epoch, 1)})
	}
	m.Tick(now + 2*vacancy)
	for _, x := range []Member{b, c} {
		m.Hear(now, x.Boot, Answer{Claim: 1, Parts: []Verdict{{Yes: true}}})
	}
	if got := m.Place(0).Role; got != Holds {
		t.Fatalf("the node is %v, want %v", got, Holds)
	}
	owner = "b"
	c.State = Leaving // so that placement changes
	m.Hear(now, c.Boot, Announce{Members: []Member{c}})
	effects := m.Copied(0, b.Boot)
	next := Epoch{}
	for _, e := range effects {
		if s, ok := e.(Send); ok {
			if h, ok := s.Message.(Handover); ok {
				next = h.Parts[0].Epoch
			}
		}
	}
	if m.Place(0).Role != Frozen || next == (Epoch{}) {
		t.Fatalf("the node is %v and offered %v, want a handover", m.Place(0).Role, next)
	}

	effects = m.Hear(now, c.Boot, Announce{Held: []Holding{{0, next.handed(c.Boot)}}})
	if stashes(effects) || m.Place(0).Role != Frozen {
		t.Errorf("hearing of the third holder, the node became %v: %v", m.Place(0).Role, effects)
	}
	effects = m.Hear(now, b.Boot, Accepted{[]Holding{{0, next}}})
	if stashes(effects) || m.Place(0).Role != None || m.Place(0).Holder != "c" {
		t.Errorf("after the acceptance: %+v, %v", m.Place(0), effects)
	}
}

func stashes(effects []Effect) bool {
	return slices.ContainsFunc(effects, func(e Effect) bool { _, ok := e.(Stash); return ok })
}
