package members

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/tokenring/tokenring/test/wait"
)

// probe answers for the boots in it.
type probe map[uint64]bool

func (p probe) Probe(_ context.Context, _ string, boot uint64) Verdict {
	if p[boot] {
		return Alive
	}
	return Unknown
}

type running struct {
	*Members
	views atomic.Int64
}

// start runs members on a free loopback port and ends them with the test.
func start(t *testing.T, c Config) *running {
	t.Helper()
	r := &running{}
	c.Logger = slog.New(slog.DiscardHandler)
	if c.Boot == 0 {
		c.Boot = 1 + rand.Uint64N(1<<62)
	}
	if c.Cluster == "" {
		c.Cluster = "test"
	}
	if c.Bind == "" {
		c.Bind = "127.0.0.1:0"
	}
	if c.Prober == nil {
		c.Prober = probe{}
	}
	c.PeerPort = 7947
	c.OnView = func(v View) {
		r.views.Add(1)
		if v.Self().Cleared {
			r.Activate()
		}
	}
	r.Members = New(c)
	if err := r.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(context.Background()); err != nil {
			t.Errorf("close: %v", err)
		}
		if err := r.Close(context.Background()); err != nil {
			t.Errorf("close again: %v", err)
		}
	})
	return r
}

// sees reports whether the node lists the id in the state.
func (r *running) sees(id string, s State) bool {
	for _, m := range r.View() {
		if m.ID == id && m.State == s {
			return true
		}
	}
	return false
}

func (r *running) active() bool { return len(r.View()) > 0 && r.View().Self().State == Active }

// die ends memberlist without a goodbye.
func (r *running) die(t *testing.T) {
	t.Helper()
	r.closeOnce.Do(func() {
		r.cancel()
		r.running.Wait()
		if err := r.list.Shutdown(); err != nil {
			t.Errorf("shut down: %v", err)
		}
	})
}

const slow = 20 * time.Second // what takes longer on the slowest machine is broken

func TestAloneIsActiveAtOnce(t *testing.T) {
	for name, seeds := range map[string][]string{
		"no seeds":              nil,
		"its own address":       {"127.0.0.1:17946"},
		"its own, by name":      {"localhost:17946"},
		"its own, IPv4 in IPv6": {"[::ffff:127.0.0.1]:17946"},
	} {
		t.Run(name, func(t *testing.T) {
			port := freePort(t)
			for i := range seeds {
				seeds[i] = strings.ReplaceAll(seeds[i], "17946", port)
			}
			m := start(t, Config{ID: "a", Bind: "127.0.0.1:" + port, Seeds: seeds})
			// Well below the time after which a node gives up on its seeds.
			wait.For(t, lonely/2, "an active node", m.active)
		})
	}
}

// freePort returns a port that was free on loopback a moment ago, for TCP and UDP.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return port
}

func TestJoinDieLeave(t *testing.T) {
	a := start(t, Config{ID: "a"})
	b := start(t, Config{ID: "b", Seeds: []string{a.Gossip()}})
	_, port, _ := net.SplitHostPort(a.Gossip())
	c := start(t, Config{ID: "c", Seeds: []string{"localhost:" + port}})
	nodes := map[string]*running{"a": a, "b": b, "c": c}
	wait.For(t, slow, "three nodes that see three active ones", func() bool {
		for _, n := range nodes {
			for id := range nodes {
				if !n.sees(id, Active) {
					return false
				}
			}
		}
		return true
	})
	if got := b.View().Self(); got.ID != "b" || !got.Self || got.Peer != "127.0.0.1:7947" {
		t.Errorf("b describes itself as %+v", got)
	}

	c.die(t)
	begin := time.Now()
	wait.For(t, slow, "a and b to find c dead", func() bool { return a.sees("c", Dead) && b.sees("c", Dead) })
	t.Logf("a silent node was found dead by all after %v", time.Since(begin).Round(time.Millisecond))

	b.Leaving()
	wait.For(t, slow, "a to hear that b is leaving", func() bool { return a.sees("b", Leaving) })
	if err := b.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	wait.For(t, slow, "b to be gone without a trace", func() bool {
		return !a.sees("b", Leaving) && !a.sees("b", Dead) && !a.sees("b", Active)
	})
}

// A node that leaves without any time between saying so and going is not taken for dead.
func TestLeaveAtOnce(t *testing.T) {
	a := start(t, Config{ID: "a"})
	b := start(t, Config{ID: "b", Seeds: []string{a.Gossip()}})
	wait.For(t, slow, "a to see b", func() bool { return a.sees("b", Active) })
	b.Leaving()
	if err := b.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	wait.For(t, slow, "b to be gone", func() bool { return len(a.View()) == 1 })
}

func TestRefusals(t *testing.T) {
	for _, c := range []struct {
		name string
		with Config
		want string
	}{
		{"another cluster", Config{ID: "b", Cluster: "other"}, `its --cluster is "test", this node's is "other"`},
		{"another placement", Config{ID: "b", Fingerprint: 7}, "it places keys in another way"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := start(t, Config{ID: "a"})
			c.with.Seeds = []string{a.Gossip()}
			b := start(t, c.with)
			select {
			case err := <-b.Failed():
				if _, ok := errors.AsType[*RefusedError](err); !ok || !strings.Contains(err.Error(), c.want) {
					t.Errorf("refused with %q, want a RefusedError with %q", err, c.want)
				}
			case <-time.After(slow):
				t.Fatal("the node was not refused")
			}
			if a.sees("b", Joining) || a.sees("b", Active) {
				t.Error("the refused node is listed")
			}
			select {
			case err := <-a.Failed():
				t.Errorf("the node that refused ended as well: %v", err)
			default:
			}
		})
	}
}

func TestProtocolVersions(t *testing.T) {
	self := meta{Cluster: "c", MinProtocol: 2, MaxProtocol: 4}
	for _, c := range []struct {
		min, max int
		ok       bool
	}{{1, 1, false}, {1, 2, true}, {3, 3, true}, {4, 9, true}, {5, 9, false}} {
		if got := self.refuse(meta{Cluster: "c", MinProtocol: c.min, MaxProtocol: c.max}) == nil; got != c.ok {
			t.Errorf("versions 2 to 4 with %d to %d: accepted = %v, want %v", c.min, c.max, got, c.ok)
		}
	}
}

func TestSecondBootOfAnID(t *testing.T) {
	t.Run("the old one answers", func(t *testing.T) {
		old := start(t, Config{ID: "a", Boot: 9})
		wait.For(t, slow, "the old boot to be active", old.active)
		second := start(t, Config{ID: "a", Boot: 3, Seeds: []string{old.Gossip()}, Prober: probe{9: true}})
		select {
		case err := <-second.Failed():
			if want := `id "a" is taken by a running node at 127.0.0.1:7947`; !strings.Contains(err.Error(), want) {
				t.Errorf("ended with %q, want %q", err, want)
			}
		case <-time.After(slow):
			t.Fatal("the second boot was not ended")
		}
		if second.active() {
			t.Error("the second boot became active")
		}
		if !old.active() {
			t.Error("the first boot is not active any more")
		}
	})
	t.Run("the old one is dead", func(t *testing.T) {
		witness := start(t, Config{ID: "w"})
		old := start(t, Config{ID: "a", Seeds: []string{witness.Gossip()}})
		wait.For(t, slow, "the old boot to be listed", func() bool { return witness.sees("a", Active) })
		old.die(t)
		again := start(t, Config{ID: "a", Seeds: []string{witness.Gossip()}})
		wait.For(t, slow, "the new boot to be listed as joining", func() bool { return witness.sees("a", Joining) || witness.sees("a", Dead) })
		wait.For(t, slow, "the new boot to be active", again.active)
		wait.For(t, slow, "the old boot to be forgotten", func() bool {
			return len(witness.View()) == 2 && witness.sees("a", Active)
		})
	})
}

// Memberlist does not tell a joining node of a boot that is only suspected to be dead. It
// hears of it in the exchange of states, and waits until that is not listed any more.
func TestSuspectedBootOfAnID(t *testing.T) {
	list := func(s memberlist.NodeStateType) []*memberlist.Node {
		data, err := meta{ID: "a", Boot: 9, State: Active, Cluster: "test", Peer: "127.0.0.1:1", MinProtocol: MinProtocol, MaxProtocol: MaxProtocol}.encode(512)
		if err != nil {
			t.Fatal(err)
		}
		return []*memberlist.Node{{Name: "a@9", Meta: data, State: s}}
	}
	for _, c := range []struct {
		state   memberlist.NodeStateType
		answers bool
		waits   bool
	}{
		{memberlist.StateSuspect, false, true},
		{memberlist.StateSuspect, true, true},
		{memberlist.StateAlive, false, true},
		{memberlist.StateDead, false, false},
		{memberlist.StateLeft, false, false},
	} {
		m := New(Config{ID: "a", Boot: 3, Cluster: "test", Prober: probe{9: c.answers}, Logger: slog.New(slog.DiscardHandler)})
		if err := (*admission)(&m.record).NotifyMerge(list(c.state)); err != nil {
			t.Fatal(err)
		}
		if got := len(m.record.rivals()) > 0; got != c.waits {
			t.Fatalf("listed as %v: waits = %v, want %v", c.state, got, c.waits)
		}
		if !c.waits {
			continue
		}
		m.consider(t.Context())
		if m.record.state() != Joining {
			t.Errorf("listed as %v: the second boot became %v", c.state, m.record.state())
		}
		if ended := len(m.failed) > 0; ended != c.answers {
			t.Errorf("the other boot answers = %v: ended = %v", c.answers, ended)
		}
		m.record.beginRound()
		m.record.endRound() // nobody lists it any more
		if got := m.record.rivals(); len(got) > 0 {
			t.Errorf("gone from all lists, and still waited for: %+v", got)
		}
	}
}

func TestWhoYields(t *testing.T) {
	at := func(s State, boot uint64) Member { return Member{State: s, Boot: boot} }
	for _, c := range []struct {
		other, self Member
		want        bool
	}{
		{at(Joining, 1), at(Active, 2), true},
		{at(Active, 2), at(Joining, 1), false},
		{at(Joining, 2), at(Joining, 1), true},
		{at(Joining, 1), at(Joining, 2), false},
		{at(Active, 2), at(Active, 1), true},
		{at(Active, 1), at(Active, 2), false},
	} {
		if got := yields(c.other, c.self); got != c.want {
			t.Errorf("%v %d yields to %v %d = %v, want %v", c.other.State, c.other.Boot, c.self.State, c.self.Boot, got, c.want)
		}
	}
}

func TestMetadataThatDoesNotFit(t *testing.T) {
	m := New(Config{ID: strings.Repeat("i", 64), Boot: 1, Cluster: strings.Repeat("c", 500), Bind: "127.0.0.1:0"})
	if err := m.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "at most 512 fit") {
		t.Errorf("started with %v, want an error that says what fits", err)
	}
	if err := m.Close(t.Context()); err != nil {
		t.Errorf("close: %v", err)
	}
}

// The other side of a split comes back by itself, whoever was whose seed.
func TestRejoinAfterLoss(t *testing.T) {
	port := freePort(t)
	a := start(t, Config{ID: "a"})
	b := start(t, Config{ID: "b", Bind: "127.0.0.1:" + port, Seeds: []string{a.Gossip()}})
	wait.For(t, slow, "a to see b", func() bool { return a.sees("b", Active) })
	b.die(t)
	wait.For(t, slow, "a to find b dead", func() bool { return a.sees("b", Dead) })
	// It comes back at its address without any seed: a has to find it.
	again := start(t, Config{ID: "b", Bind: "127.0.0.1:" + port})
	wait.For(t, slow, "both to be together again", func() bool { return a.sees("b", Active) && again.sees("a", Active) })
}

func TestAdvertisedAddress(t *testing.T) {
	for _, c := range []struct{ host, bound, want string }{
		{"", "127.0.0.1", "127.0.0.1"},
		{"", "::1", "::1"},
		{"192.0.2.7", "127.0.0.1", "192.0.2.7"},
		{"::ffff:192.0.2.7", "", "192.0.2.7"},
		{"2001:db8::7", "0.0.0.0", "2001:db8::7"},
	} {
		if got, err := advertised(t.Context(), c.host, c.bound); err != nil || got != c.want {
			t.Errorf("advertise %q, bound to %q: %q, %v, want %q", c.host, c.bound, got, err, c.want)
		}
	}
	for _, bound := range []string{"", "0.0.0.0", "::"} {
		got, err := advertised(t.Context(), "", bound)
		if ip := net.ParseIP(got); err != nil || ip == nil || ip.IsUnspecified() {
			t.Errorf("bound to %q: found %q, %v, want an address of this machine", bound, got, err)
		}
	}
	if _, err := advertised(t.Context(), "no-such-host.invalid", ""); err == nil {
		t.Error("a host that does not exist is advertised")
	}
	if a, b := everywhere("192.0.2.7"), everywhere("2001:db8::7"); a != "0.0.0.0" || b != "::" {
		t.Errorf("bound to %q and %q, want all of IPv4 and all of IPv6", a, b)
	}
}
