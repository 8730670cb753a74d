package peer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tokenring/tokenring/bucket"
	"github.com/tokenring/tokenring/node"
	"github.com/tokenring/tokenring/node/authority"
	"github.com/tokenring/tokenring/node/keeper"
	"github.com/tokenring/tokenring/node/members"
	peerv1 "github.com/tokenring/tokenring/proto/peer/v1"
	"github.com/tokenring/tokenring/ring"
	"github.com/tokenring/tokenring/test/wait"
)

// notes is one of every kind.
func notes(t *testing.T) []keeper.Note {
	e := func(c, b uint64) authority.Epoch { return authority.Epoch{Counter: c, Boot: b} }
	members := []authority.Member{{Boot: 1, ID: "a", Addr: "127.0.0.1:1", State: authority.Active}, {Boot: 1<<64 - 1, ID: "b", State: authority.Leaving}}
	held := []authority.Holding{{Partition: 0, Epoch: e(3, 1)}, {Partition: ring.Partitions - 1, Epoch: e(maxCounter, 1<<64-1)}, {Partition: 7, Epoch: e(4, 1)}}
	last := make([]authority.Epoch, ring.Partitions)
	last[5], last[ring.Partitions-1] = e(9, 2), e(1, 1)
	messages := []authority.Message{
		authority.Hello{Members: members, Held: held, Last: last},
		authority.Announce{Members: members, Held: held},
		authority.Beat{}, authority.Goodbye{},
		authority.Handover{Members: members, Parts: held, From: []authority.Epoch{e(1, 5), e(2, 6), e(3, 5)}},
		authority.Accepted{Parts: held}, authority.Refused{Parts: held},
		authority.Ask{Claim: 9, Members: members, Parts: held},
		authority.Answer{Claim: 9, Members: members, Parts: []authority.Verdict{
			{Partition: 3, Yes: true, Last: e(1, 2), Copy: authority.Version{Complete: true, Epoch: e(1, 2), Seq: 7}}, {Partition: 4},
		}},
		authority.Fetch{Claim: 9, Parts: []int{0, ring.Partitions - 1}},
		authority.Drop{Parts: held},
	}
	var all []keeper.Note
	for _, m := range messages {
		all = append(all, keeper.Note{Message: m})
	}
	slow, fast := limit(t, 100, time.Minute, 20), limit(t, 0, 0, 1<<60)
	return append(all, keeper.Note{Chunks: []keeper.Chunk{
		{Partition: 3, Epoch: e(1, 2), Seq: 9, Start: true, States: []bucket.State{
			{Name: "api", Key: "k\x00\xff", Limit: slow, Version: 1<<64 - 1, Deficit: 1},
			{Name: "login", Key: "k", Limit: fast, Deficit: 1 << 61},
			{Name: "api", Key: "", Limit: slow, Version: 1<<64 - 1, Deficit: 5},
			{Name: "api", Key: "gone", Limit: limit(t, 0, 0, 0), Gone: true},
		}},
		{Kind: keeper.Merged, Partition: 4, End: true, Number: 3, States: []bucket.State{}},
		{Kind: keeper.Based, Partition: 4, Start: true, States: []bucket.State{}},
	}})
}

func TestNotesRoundTrip(t *testing.T) {
	for _, want := range notes(t) {
		data, err := proto.Marshal(noteToWire(want))
		if err != nil {
			t.Fatal(err)
		}
		var w peerv1.Note
		if err := proto.Unmarshal(data, &w); err != nil {
			t.Fatal(err)
		}
		got, err := noteFromWire(&w)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%T arrived as %+v, was sent as %+v (%v)", want.Message, got, want, err)
		}
	}
}

// A note that no node sends ends the stream with an error instead of doing harm.
func TestBadNotes(t *testing.T) {
	parts := func(h *peerv1.Holdings) *peerv1.Note {
		return &peerv1.Note{Kind: &peerv1.Note_Accepted{Accepted: h}}
	}
	chunk := func(change func(*peerv1.Chunk)) *peerv1.Note {
		c := &peerv1.Chunk{Rules: []*peerv1.Rule{{Limit: "a", Tokens: 1, Per: 1, Burst: 1}}, Keys: [][]byte{[]byte("k")}, By: []uint32{0}, Deficits: []uint64{1}}
		change(c)
		return &peerv1.Note{Kind: &peerv1.Note_Chunks{Chunks: &peerv1.Chunks{Chunks: []*peerv1.Chunk{c}}}}
	}
	if _, err := noteFromWire(chunk(func(*peerv1.Chunk) {})); err != nil {
		t.Fatalf("a good chunk: %v", err)
	}
	bad := map[string]*peerv1.Note{
		"nothing":        {},
		"no chunk":       {Kind: &peerv1.Note_Chunks{Chunks: &peerv1.Chunks{}}},
		"partition":      parts(&peerv1.Holdings{Partitions: []uint32{ring.Partitions}, Counters: []uint64{1}, Boots: []uint32{0}, Table: []uint64{1}}),
		"columns":        parts(&peerv1.Holdings{Partitions: []uint32{1, 2}, Counters: []uint64{1}, Boots: []uint32{0}, Table: []uint64{1}}),
		"table":          parts(&peerv1.Holdings{Partitions: []uint32{1}, Counters: []uint64{1}, Boots: []uint32{1}, Table: []uint64{1}}),
		"member":         {Kind: &peerv1.Note_Announce{Announce: &peerv1.Announce{Members: []*peerv1.Member{{Id: "a"}}}}},
		"from":           {Kind: &peerv1.Note_Handover{Handover: &peerv1.Handover{Parts: holdingsToWire([]authority.Holding{{Partition: 1}})}}},
		"answer":         {Kind: &peerv1.Note_Answer{Answer: &peerv1.Answer{Last: holdingsToWire([]authority.Holding{{Partition: 1}})}}},
		"fetch":          {Kind: &peerv1.Note_Fetch{Fetch: &peerv1.Fetch{Partitions: []uint32{1 << 31}}}},
		"chunk":          chunk(func(c *peerv1.Chunk) { c.Partition = ring.Partitions }),
		"kind":           chunk(func(c *peerv1.Chunk) { c.Kind = 4 }),
		"chunk columns":  chunk(func(c *peerv1.Chunk) { c.By = nil }),
		"rule":           chunk(func(c *peerv1.Chunk) { c.By[0] = 1 }),
		"limit":          chunk(func(c *peerv1.Chunk) { c.Rules[0].Burst = 1 << 63 }),
		"no such limit":  chunk(func(c *peerv1.Chunk) { c.Rules[0].Per = 0 }),
		"key":            chunk(func(c *peerv1.Chunk) { c.Keys[0] = make([]byte, bucket.MaxKeyBytes+1) }),
		"deficit":        chunk(func(c *peerv1.Chunk) { c.Deficits[0] = 1 << 63 }),
		"counter":        parts(&peerv1.Holdings{Partitions: []uint32{1}, Counters: []uint64{maxCounter + 1}, Boots: []uint32{0}, Table: []uint64{1}}),
		"chunk counter":  chunk(func(c *peerv1.Chunk) { c.Epoch = &peerv1.Epoch{Counter: 1<<64 - 1} }),
		"repeated parts": {Kind: &peerv1.Note_Fetch{Fetch: &peerv1.Fetch{Partitions: make([]uint32, maxParts+1)}}},
		"long name":      chunk(func(c *peerv1.Chunk) { c.Rules[0].Limit = strings.Repeat("a", maxName+1) }),
		"zero in name":   chunk(func(c *peerv1.Chunk) { c.Rules[0].Limit = "a\x00b" }),
		"dropped bucket": chunk(func(c *peerv1.Chunk) { c.Gone = []uint32{1} }),
	}
	for name, n := range bad {
		if got, err := noteFromWire(n); err == nil {
			t.Errorf("%s: read as %+v", name, got)
		}
	}
}

func FuzzNote(f *testing.F) {
	for _, n := range notes(&testing.T{}) {
		data, err := proto.Marshal(noteToWire(n))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var w peerv1.Note
		if proto.Unmarshal(data, &w) != nil {
			return
		}
		n, err := noteFromWire(&w)
		if err != nil {
			return
		}
		if _, err := noteFromWire(noteToWire(n)); err != nil {
			t.Errorf("what was read cannot be read again: %v", err)
		}
	})
}

// teller is a fake that tells notes and counts what was heard.
type teller struct {
	tell func(keeper.Outgoing)
	gone chan uint64
}

func (f *teller) Tell(_ uint64, out keeper.Outgoing) { f.tell(out) }
func (f *teller) Gone(boot uint64) {
	select {
	case f.gone <- boot:
	default:
	}
}

// hearer is a fake that remembers what it was told.
type hearer struct {
	mu    sync.Mutex
	heard []keeper.Note
	ended int
}

func (h *hearer) Hear(boot uint64, in keeper.Incoming) error {
	defer func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.ended++
	}()
	for n := uint64(1); ; n++ {
		note, err := in.Recv()
		if err != nil {
			return err
		}
		if boot != 1 {
			return fmt.Errorf("told by %d", boot)
		}
		h.mu.Lock()
		h.heard = append(h.heard, note)
		h.mu.Unlock()
		if err := in.Ack(n); err != nil {
			return err
		}
	}
}

func listenTo(t *testing.T, boot uint64, addr string, h Hearer) (*Server, node.Peer) {
	t.Helper()
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	s := NewServer(ServerConfig{ID: "b", Boot: boot, Decider: &decider{}, Hearer: h})
	s.Start(l)
	t.Cleanup(func() { s.Close(context.Background()) })
	return s, node.Peer{ID: "b", Boot: boot, Addr: l.Addr().String()}
}

func tellTo(t *testing.T, f Teller, to node.Peer) *Pool {
	t.Helper()
	p := NewPool(PoolConfig{ID: "a", Boot: 1, Teller: f})
	if err := p.SetPeers([]node.Peer{to}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close(context.Background()) })
	return p
}

// What is told arrives in order and is acknowledged, on stream after stream.
func TestTelling(t *testing.T) {
	const streams = 3
	all := notes(t)
	done := make(chan struct{})
	opened := 0
	f := &teller{gone: make(chan uint64, 1), tell: func(out keeper.Outgoing) {
		if opened++; opened > streams {
			if n, err := out.Heard(); err == nil {
				t.Errorf("%d notes were heard, none told", n)
			}
			return
		}
		for _, n := range all {
			if err := out.Send(n); err != nil {
				t.Error(err)
			}
		}
		for {
			if n, err := out.Heard(); err != nil || n == uint64(len(all)) {
				if err != nil {
					t.Error(err)
				}
				break
			}
		}
		if opened == streams {
			close(done)
		}
	}}
	h := &hearer{}
	_, to := listenTo(t, 7, "127.0.0.1:0", h)
	tellTo(t, f, to)
	select {
	case <-done:
	case <-time.After(slow):
		t.Fatal("not everything was heard")
	}
	wait.For(t, slow, "the streams to end", func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return h.ended >= streams
	})
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.heard) != streams*len(all) {
		t.Fatalf("%d notes were heard, %d told", len(h.heard), streams*len(all))
	}
	for i, n := range h.heard {
		if !reflect.DeepEqual(n, all[i%len(all)]) {
			t.Errorf("note %d arrived as %+v", i, n)
		}
	}
}

// Whoever ends, or gives its address to another boot, is found gone.
func TestGone(t *testing.T) {
	f := &teller{gone: make(chan uint64, 1), tell: func(out keeper.Outgoing) {
		if n, err := out.Heard(); err == nil {
			t.Errorf("%d notes were heard, none told", n)
		}
	}}
	h := &hearer{}
	server, to := listenTo(t, 7, "127.0.0.1:0", h)
	p := tellTo(t, f, to)
	if v := p.Probe(t.Context(), to.Addr, 7); v != members.Alive {
		t.Errorf("a boot that runs is %v", v)
	}
	if v := p.Probe(t.Context(), to.Addr, 6); v != members.Gone {
		t.Errorf("a boot whose address another one has is %v", v)
	}
	if err := server.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	select {
	case boot := <-f.gone:
		if boot != 7 {
			t.Errorf("boot %d is gone, want 7", boot)
		}
	case <-time.After(slow):
		t.Error("nobody noticed that the server is gone")
	}
	if v := p.Probe(t.Context(), to.Addr, 7); v != members.Gone {
		t.Errorf("a boot that has ended is %v", v)
	}
}

// A port that accepts and says nothing tells nothing; one that closes at once is gone.
func TestProbeOfOtherPorts(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	p := NewPool(PoolConfig{ID: "a", Boot: 1})
	if v := p.Probe(t.Context(), l.Addr().String(), 7); v != members.Unknown {
		t.Errorf("a silent port is %v", v)
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	wait.For(t, slow, "the silent connections to be gone", func() bool {
		return p.Probe(t.Context(), l.Addr().String(), 7) == members.Gone
	})
}

// later is a fake whose partitions are frozen until they are told to thaw.
type frozenDecider struct {
	thaw chan struct{}
}

func (d *frozenDecider) Take(_ context.Context, takes []bucket.Take, outs []bucket.Outcome) {
	for i := range takes {
		outs[i] = bucket.Outcome{}
		if takes[i].Key == "frozen" {
			outs[i].Err = bucket.ErrFrozen
		}
	}
}

func (d *frozenDecider) Later(ctx context.Context, _ []bucket.Take, outs []bucket.Outcome) {
	select {
	case <-d.thaw:
		clear(outs)
	case <-ctx.Done():
		outs[0].Err = ctx.Err()
	}
}

// Checks of a frozen partition hold up no others, and are answered when it thaws.
func TestFrozenHoldsUpNobody(t *testing.T) {
	d := &frozenDecider{thaw: make(chan struct{})}
	_, to := serve(t, 7, "127.0.0.1:0", d)
	p, l := pool(t, to), limit(t, 1, 1, 1)
	frozen := make(chan bucket.Outcome, 1)
	go func() {
		frozen <- ask(t, p, to, bucket.Take{Name: "a", Key: "frozen", Limit: l, Cost: 1})[0]
	}()
	for range 20 {
		if out := ask(t, p, to, bucket.Take{Name: "a", Key: "other", Limit: l, Cost: 1})[0]; out.Err != nil {
			t.Fatal(out.Err)
		}
	}
	select {
	case out := <-frozen:
		t.Fatalf("a frozen partition has decided: %+v", out)
	default:
	}
	close(d.thaw)
	select {
	case out := <-frozen:
		if out.Err != nil {
			t.Error(out.Err)
		}
	case <-time.After(slow):
		t.Error("nobody answered after the thaw")
	}
}

func TestMovedArrives(t *testing.T) {
	want := authority.Epoch{Counter: 4, Boot: 1<<64 - 2}
	d := &decider{do: func(_ []bucket.Take, outs []bucket.Outcome) { outs[0].Err = &node.MovedError{To: want} }}
	_, to := serve(t, 7, "127.0.0.1:0", d)
	out := ask(t, pool(t, to), to, bucket.Take{Limit: limit(t, 1, 1, 1), Cost: 1})[0]
	if moved, ok := errors.AsType[*node.MovedError](out.Err); !ok || moved.To != want {
		t.Errorf("arrived as %v, want moved to %v", out.Err, want)
	}
}
