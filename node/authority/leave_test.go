package authority

import (
	"math/rand/v2"
	"testing"
	"time"
)

// A node that leaves in the middle of a claim says yes to the claim of whoever places the
// partition on itself now, however great the other one's boot.
func TestLeavingNodeGivesUpClaims(t *testing.T) {
	m := New(Config{
		Self: Member{ID: "a", Boot: 1, State: Joining}, Partitions: 1, Rand: rand.New(rand.NewPCG(1, 1)),
		Place: func([]string, string) (owners, heirs []string) { return []string{"a"}, []string{""} },
	})
	b := Member{ID: "b", Boot: 2, State: Active}
	m.Gossip(0, View{Addr: "a:1", Members: []Listed{{Member: b}}, Cleared: true})
	m.Up(0, b.Boot)
	m.Hear(0, b.Boot, Hello{Members: []Member{b}, Last: make([]Epoch, 1)})
	m.Tick(2 * vacancy)
	ask := Ask{Claim: 1, Parts: []Holding{{0, Epoch{}}}}
	if got := m.Place(0).Role; got != Claiming || verdict(m.Hear(2*vacancy, b.Boot, ask)) {
		t.Fatalf("the node is %v, want %v, and no consent", got, Claiming)
	}
	m.Leave(2 * vacancy)
	if got := m.Place(0).Role; got != None || !verdict(m.Hear(2*vacancy, b.Boot, ask)) {
		t.Errorf("leaving, the node is %v, want %v, and consent", got, None)
	}
	if effects := m.Hear(3*vacancy, b.Boot, Answer{Claim: 1, Parts: []Verdict{{Yes: true}}}); m.Place(0).Role != None {
		t.Errorf("after a late answer the node is %v: %v", m.Place(0).Role, effects)
	}
	for now := 3 * vacancy; now < 3*time.Second; now += vacancy {
		m.Tick(now)
	}
	if got := m.Place(0).Role; got != None {
		t.Errorf("later, the leaving node is %v, want %v", got, None)
	}
}

// verdict is what the answer among the effects says of its only partition.
func verdict(effects []Effect) bool {
	for _, e := range effects {
		if s, ok := e.(Send); ok {
			if a, ok := s.Message.(Answer); ok {
				return a.Parts[0].Yes
			}
		}
	}
	return false
}
