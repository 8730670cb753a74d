package authority

import (
	"math/rand/v2"
	"testing"
	"time"
)

// A member that said hello, and that gossip never lists, is waited for no longer than three
// seconds once its stream has ended, whoever holds its port open.
func TestUnlistedMemberIsOutWithItsStream(t *testing.T) {
	m := New(Config{
		Self: Member{ID: "a", Boot: 1, State: Joining}, Partitions: 1, Rand: rand.New(rand.NewPCG(1, 1)),
		Place: func([]string, string) (owners, heirs []string) { return []string{"a"}, []string{""} },
	})
	b := Member{ID: "b", Boot: 2, State: Active}
	m.Gossip(0, View{Addr: "a:1", Cleared: true})
	m.Hear(0, b.Boot, Hello{Members: []Member{b}, Last: make([]Epoch, 1)})
	ended := 10 * time.Second
	for now := time.Duration(0); now < ended; now += time.Second {
		m.Tick(now)
	}
	if m.members[b.Boot].out || !m.Hears(b.Boot) {
		t.Fatal("a member whose stream is open is out")
	}
	m.Hear(ended, b.Boot, Beat{})
	m.Ended(ended, b.Boot)
	m.Tick(ended + ghost - time.Millisecond)
	if m.members[b.Boot].out {
		t.Errorf("out after %v, want %v", ghost-time.Millisecond, ghost)
	}
	if m.Tick(ended + ghost); !m.members[b.Boot].out {
		t.Errorf("not out %v after its stream has ended", ghost)
	}
}
