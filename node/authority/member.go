package authority

import (
	"fmt"
	"slices"
	"time"
)

// A member is another boot, as far as this node knows.
type member struct {
	Member
	heard  time.Duration // when it last said anything, or was first heard of
	in     bool          // its stream to this node is open, and the hello has arrived
	up     bool          // this node's stream to it is open
	met    bool          // has said hello at some time
	listed bool          // by gossip, as alive
	dead   bool          // gossip has given it up
	gone   bool          // its peer port refuses, or another boot answers there
	out    bool
	silent bool // out for no better reason than silence: it may have gone on deciding

	taken, refused map[int]Epoch // by partition, the newest handover from it that was taken, and refused
}

// Listed is what gossip says of a member.
type Listed struct {
	Member
	Dead bool // gone without a goodbye
}

// A View is the picture that gossip has of the cluster.
type View struct {
	Addr    string // of this node's peer port
	Members []Listed
	Cleared bool // nothing in gossip speaks against this node becoming active
}

// Gossip hands over a new picture.
func (m *Machine) Gossip(now time.Duration, v View) []Effect {
	m.now = max(m.now, now)
	m.self.Addr, m.cleared = v.Addr, v.Cleared
	alive := map[uint64]bool{}
	for _, l := range v.Members {
		if !l.Dead {
			m.learn(l.Member)
			alive[l.Boot] = true
		}
	}
	for _, boot := range m.order {
		x := m.members[boot]
		if alive[boot] {
			x.listed, x.dead = true, false
		} else if x.listed {
			x.listed, x.dead = false, true
		}
		m.judge(x)
	}
	return m.finish()
}

// Up says that the stream to a boot is open. What it is sent first is a Hello.
func (m *Machine) Up(now time.Duration, boot uint64) []Effect {
	m.now = max(m.now, now)
	x := m.members[boot]
	if x == nil {
		return m.finish()
	}
	x.up = true
	m.send(boot, m.hello())
	m.dropAt(boot)
	m.askAgain(boot)
	m.settleAll()
	return m.finish()
}

// Down says that the stream to a boot has ended.
func (m *Machine) Down(now time.Duration, boot uint64) []Effect {
	m.now = max(m.now, now)
	if x := m.members[boot]; x != nil && x.up {
		x.up = false
		for i := range m.parts {
			if p := &m.parts[i]; p.role == Frozen && p.to == boot {
				p.offered = false
			} else if p.debtor == boot {
				p.debtor = 0
			}
		}
		m.settleAll()
	}
	return m.finish()
}

// Ended says that the stream from a boot has ended and that all that arrived on it was
// handed to Hear.
func (m *Machine) Ended(now time.Duration, boot uint64) []Effect {
	m.now = max(m.now, now)
	if x := m.members[boot]; x != nil {
		x.in = false
		m.judge(x)
	}
	return m.finish()
}

// Gone says that the peer port of a boot refuses connections, or that another boot answers
// there.
func (m *Machine) Gone(now time.Duration, boot uint64) []Effect {
	m.now = max(m.now, now)
	if x := m.members[boot]; x != nil {
		x.gone = true
		m.judge(x)
	}
	return m.finish()
}

// Peers returns the members that streams should be open to.
func (m *Machine) Peers() []Member {
	var peers []Member
	for _, boot := range m.order {
		if x := m.members[boot]; x.State != Left && (!x.out || x.listed || !x.gone) {
			peers = append(peers, x.Member)
		}
	}
	return peers
}

// Nodes returns how many nodes partitions are placed on.
func (m *Machine) Nodes() int { return len(m.placed) }

// learn takes note of a member that somebody named.
func (m *Machine) learn(named Member) {
	if named.Boot == m.self.Boot || named.Boot == 0 {
		return
	}
	x := m.members[named.Boot]
	if x == nil {
		if named.State == Left {
			return
		}
		x = &member{Member: named, heard: m.now, taken: map[int]Epoch{}, refused: map[int]Epoch{}}
		m.members[named.Boot] = x
		at, _ := slices.BinarySearch(m.order, named.Boot)
		m.order = slices.Insert(m.order, at, named.Boot)
		m.moved = true
		m.emit(Dial{})
		return
	}
	if x.Addr == "" && named.Addr != "" {
		x.Addr = named.Addr
		m.emit(Dial{})
	}
	if named.State > x.State {
		x.State = named.State
		m.moved = true
	}
}

// judge finds out whether a member is out.
func (m *Machine) judge(x *member) {
	if x.out {
		return
	}
	silent := x.dead && m.now-x.heard >= silence || !x.in && !x.listed && m.now-x.heard >= ghost
	if x.in && silent {
		x.in = false
		m.emit(Cut{x.Boot})
	}
	if !x.in && (x.gone || x.State == Left || silent) {
		x.out, x.silent = true, !x.gone && x.State != Left
		m.moved = true
		m.emit(Dial{})
	}
}

// forget drops members that have been out for so long that nobody names them any more.
func (m *Machine) forget() {
	for i := len(m.order) - 1; i >= 0; i-- {
		x := m.members[m.order[i]]
		if x.out && !x.listed && m.now-x.heard > remembered {
			delete(m.members, x.Boot)
			m.order = slices.Delete(m.order, i, i+1)
			m.emit(Dial{})
		}
	}
}

// isOut reports whether whoever held a partition in an epoch can not hold it any more.
// Members travel with every message that names them, so whoever is not known is out.
func (m *Machine) isOut(e Epoch) bool {
	if e.Boot == m.self.Boot {
		return true
	}
	x := m.members[e.Boot]
	return x == nil || x.out
}

// usable reports whether a boot can be sent something that it will deal with.
func (m *Machine) usable(boot uint64) bool {
	x := m.members[boot]
	return x != nil && !x.out && x.up
}

// metAll reports whether every member that is not out has said hello.
func (m *Machine) metAll() bool {
	for _, x := range m.members {
		if !x.out && !x.in {
			return false
		}
	}
	return true
}

// activate lets a joining node become active: everybody it knows of has told it what they
// hold, and no other boot with its id is left.
func (m *Machine) activate() {
	if m.self.State != Joining || !m.cleared || m.paused || !m.metAll() {
		return
	}
	for _, x := range m.members {
		if x.ID == m.self.ID && !x.out {
			return
		}
	}
	m.self.State = Active
	m.moved = true
	m.emit(Activate{})
	m.broadcast(Announce{Members: m.list()})
}

// joinsWith says what a joining node waits for.
func (m *Machine) joinsWith() string {
	if !m.cleared {
		return "joining the cluster"
	}
	for _, boot := range m.order {
		if x := m.members[boot]; !x.out && (!x.in || x.ID == m.self.ID) {
			return fmt.Sprintf("joining the cluster: waiting for %s", x.ID)
		}
	}
	return "joining the cluster"
}

// list names this node and all members that are not out.
func (m *Machine) list() []Member {
	list := []Member{m.self}
	for _, boot := range m.order {
		if x := m.members[boot]; !x.out {
			list = append(list, x.Member)
		}
	}
	return list
}

// hello is all that this node knows.
func (m *Machine) hello() Hello {
	h := Hello{Members: m.list(), Last: make([]Epoch, len(m.parts))}
	for i := range m.parts {
		p := &m.parts[i]
		h.Last[i] = p.last
		if p.role.holds() && p.to == 0 { // who is handing over decides no more
			h.Held = append(h.Held, Holding{i, p.epoch})
		}
	}
	return h
}

// place computes placement anew.
func (m *Machine) place() {
	m.moved = false
	clear(m.placed)
	if m.self.State == Active {
		m.placed[m.self.ID] = m.self.Boot
	}
	for _, boot := range m.order {
		x := m.members[boot]
		if x.State != Active || x.out {
			continue
		}
		// Of two boots with one id, one is about to be found out.
		if other := m.members[m.placed[x.ID]]; m.placed[x.ID] == 0 || other != nil && !other.in && x.in {
			m.placed[x.ID] = boot
		}
	}
	before := m.owners
	owners, heirs := m.config.Place(sorted(m.placed), m.self.ID)
	m.owners, m.heirs = m.boots(owners), m.boots(heirs)
	for i, boot := range m.owners {
		if boot == m.self.Boot && (before == nil || before[i] != boot) {
			m.parts[i].since = m.now
		}
	}
}

// boots turns ids of placement into boots.
func (m *Machine) boots(ids []string) []uint64 {
	boots := make([]uint64, len(ids))
	for i, id := range ids {
		boots[i] = m.placed[id]
	}
	return boots
}

// owner returns the boot that placement gives a partition to, heir the one that it would
// without this node. 0 is nobody.
func (m *Machine) owner(i int) uint64 { return m.owners[i] }
func (m *Machine) heir(i int) uint64  { return m.heirs[i] }
