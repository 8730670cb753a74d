package peer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/tokenring/tokenring/bucket"
	"github.com/tokenring/tokenring/node"
	peerv1 "github.com/tokenring/tokenring/proto/peer/v1"
	"github.com/tokenring/tokenring/test/wait"
)

const slow = 20 * time.Second // what takes longer on the slowest machine is broken

// decider is a fake node: do decides.
type decider struct {
	mu sync.Mutex
	do func(takes []bucket.Take, outs []bucket.Outcome)
}

func (d *decider) Take(_ context.Context, takes []bucket.Take, outs []bucket.Outcome) {
	d.mu.Lock()
	do := d.do
	d.mu.Unlock()
	do(takes, outs)
}

func (d *decider) Later(ctx context.Context, takes []bucket.Take, outs []bucket.Outcome) {
	d.Take(ctx, takes, outs)
}

func serve(t *testing.T, boot uint64, addr string, d Decider) (*Server, node.Peer) {
	t.Helper()
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	s := NewServer(ServerConfig{ID: "b", Boot: boot, Decider: d})
	s.Start(l)
	t.Cleanup(func() {
		for range 2 {
			if err := s.Close(context.Background()); err != nil {
				t.Error(err)
			}
		}
	})
	return s, node.Peer{ID: "b", Boot: boot, Addr: l.Addr().String()}
}

func pool(t *testing.T, peers ...node.Peer) *Pool {
	t.Helper()
	p := NewPool(PoolConfig{ID: "a", Boot: 1})
	if err := p.SetPeers(peers); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for range 2 {
			if err := p.Close(context.Background()); err != nil {
				t.Error(err)
			}
		}
	})
	return p
}

func limit(tb testing.TB, tokens int64, per time.Duration, burst int64) bucket.Limit {
	tb.Helper()
	l, err := bucket.NewLimit(tokens, per, burst)
	if err != nil {
		tb.Fatal(err)
	}
	return l
}

func ask(t *testing.T, p *Pool, to node.Peer, takes ...bucket.Take) []bucket.Outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), slow)
	defer cancel()
	outs := make([]bucket.Outcome, len(takes))
	p.Take(ctx, to, takes, outs)
	return outs
}

// A check that no node sends is refused before anything is charged, so that it comes into no
// bucket: copies of that one could not be read.
func TestBadChecks(t *testing.T) {
	d := &decider{do: func(takes []bucket.Take, _ []bucket.Outcome) {
		if len(takes) > 0 {
			t.Errorf("%+v was decided", takes)
		}
	}}
	_, to := serve(t, 2, "127.0.0.1:0", d)
	p := pool(t, to)
	l := limit(t, 1, time.Second, 5)
	for name, take := range map[string]bucket.Take{
		"key":          {Name: "api", Key: strings.Repeat("k", bucket.MaxKeyBytes+1), Limit: l, Cost: 1},
		"name":         {Name: strings.Repeat("n", maxName+1), Key: "k", Limit: l, Cost: 1},
		"zero in name": {Name: "a\x00b", Key: "k", Limit: l, Cost: 1},
		"cost":         {Name: "api", Key: "k", Limit: l, Cost: bucket.MaxCost + 1},
	} {
		if out := ask(t, p, to, take)[0]; out.Err == nil {
			t.Errorf("%s: %+v, want an error", name, out)
		}
	}
	moved := &peerv1.Outcome{Moved: &peerv1.Epoch{Counter: maxCounter + 1, Boot: 2}}
	out := outcomeFromWire(moved)
	if _, ok := errors.AsType[*node.MovedError](out.Err); ok || out.Err == nil {
		t.Errorf("a holder in an epoch that cannot be: %+v", out)
	}
}

// A take and its outcome arrive as they were sent, whatever their values.
func TestRoundTrip(t *testing.T) {
	takes := []bucket.Take{
		{Name: "api", Key: "203.0.113.9", Limit: limit(t, 100, time.Minute, 20), Cost: 1},
		{Name: "api", Key: "k\x00\xff é", Limit: limit(t, 100, time.Minute, 20), Version: 1<<64 - 1, Cost: -bucket.MaxCost},
		{Name: "inline 1/2 3", Key: "k", Limit: limit(t, 0, 0, 1<<60), Cost: bucket.MaxCost, Charge: true},
		{Name: "x", Key: "k", Limit: limit(t, 1<<62, 1, 1), Cost: 0},
	}
	outcomes := []bucket.Outcome{
		{Decision: bucket.Decision{Allowed: true, Burst: 20, Remaining: 19, ResetAfter: 600 * time.Millisecond}},
		{Decision: bucket.Decision{Burst: 20, RetryAfter: 1<<62 + 1, ResetAfter: 1<<62 + 2}},
		{Decision: bucket.Decision{Burst: 1 << 60, RetryAfter: bucket.Never, ResetAfter: bucket.Never}},
		{Err: errors.New("reason")},
	}
	d := &decider{do: func(got []bucket.Take, outs []bucket.Outcome) {
		for i, take := range got {
			if take != takes[i] {
				t.Errorf("take %d arrived as %+v, was sent as %+v", i, take, takes[i])
			}
		}
		copy(outs, outcomes)
	}}
	_, to := serve(t, 7, "127.0.0.1:0", d)
	got := ask(t, pool(t, to), to, takes...)
	for i, want := range outcomes[:3] {
		if got[i] != want {
			t.Errorf("outcome %d arrived as %+v, was sent as %+v", i, got[i], want)
		}
	}
	if err := got[3].Err; err == nil || err.Error() != "undecided: reason" {
		t.Errorf("an undecided check arrived with the error %v", err)
	}
}

func TestManyCallersShareTheStream(t *testing.T) {
	store := bucket.New(bucket.Config{})
	d := &decider{do: func(takes []bucket.Take, outs []bucket.Outcome) {
		for i := range takes {
			outs[i].Decision = store.Take(&takes[i]).Decision
		}
	}}
	_, to := serve(t, 7, "127.0.0.1:0", d)
	p, l := pool(t, to), limit(t, 0, 0, 20)
	for round := range 20 {
		var mu sync.Mutex
		allowed := 0
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				out := ask(t, p, to, bucket.Take{Name: "api", Key: fmt.Sprint(round), Limit: l, Cost: 1})[0]
				mu.Lock()
				defer mu.Unlock()
				if out.Err != nil {
					t.Error(out.Err)
				} else if out.Allowed {
					allowed++
				}
			})
		}
		wg.Wait()
		if allowed != 20 {
			t.Fatalf("round %d: %d of 100 allowed, want exactly 20", round, allowed)
		}
	}
}

// What is meant for a boot that is gone does not reach the one at its address.
func TestAnotherBootIsRefused(t *testing.T) {
	d := &decider{do: func([]bucket.Take, []bucket.Outcome) { t.Error("the wrong boot was asked to decide") }}
	_, to := serve(t, 7, "127.0.0.1:0", d)
	gone := to
	gone.Boot = 6
	p := pool(t, gone)
	if out := ask(t, p, gone, bucket.Take{Limit: limit(t, 1, 1, 1), Cost: 1})[0]; !errors.Is(out.Err, node.ErrDown) {
		t.Errorf("asking a boot that is gone: %v, want not connected", out.Err)
	}
}

func TestRestartUnderTheSameAddress(t *testing.T) {
	d := &decider{do: func(_ []bucket.Take, outs []bucket.Outcome) { clear(outs) }}
	first, to := serve(t, 7, "127.0.0.1:0", d)
	p := pool(t, to)
	if out := ask(t, p, to, bucket.Take{Limit: limit(t, 1, 1, 1), Cost: 1})[0]; out.Err != nil {
		t.Fatal(out.Err)
	}
	if err := first.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	wait.For(t, slow, "the end of the stream to be noticed", func() bool { return !p.Connected(7) })

	_, again := serve(t, 8, to.Addr, d)
	if err := p.SetPeers([]node.Peer{again}); err != nil {
		t.Fatal(err)
	}
	if out := ask(t, p, again, bucket.Take{Limit: limit(t, 1, 1, 1), Cost: 1})[0]; out.Err != nil {
		t.Errorf("the new boot: %v", out.Err)
	}
	if out := ask(t, p, to, bucket.Take{Limit: limit(t, 1, 1, 1), Cost: 1})[0]; !errors.Is(out.Err, node.ErrDown) {
		t.Errorf("the old boot, no longer a peer: %v, want not connected", out.Err)
	}
}

// A connection that ends between question and answer is told apart from one that was
// never there: the check may have been charged.
func TestLostIsTold(t *testing.T) {
	asked, release := make(chan struct{}), make(chan struct{})
	d := &decider{do: func([]bucket.Take, []bucket.Outcome) { close(asked); <-release }}
	s, to := serve(t, 7, "127.0.0.1:0", d)
	p := pool(t, to)
	done := make(chan bucket.Outcome)
	go func() { done <- ask(t, p, to, bucket.Take{Limit: limit(t, 1, 1, 1), Cost: 1})[0] }()
	<-asked
	closed := make(chan error)
	go func() { closed <- s.Close(context.Background()) }()
	if out := <-done; !errors.Is(out.Err, node.ErrLost) {
		t.Errorf("the connection ended before the answer: %v, want ErrLost", out.Err)
	}
	close(release)
	if err := <-closed; err != nil {
		t.Error(err)
	}
}

// Nobody waits for what is over, so nobody is charged for it.
func TestExpiredChecksAreNotDecided(t *testing.T) {
	decided := 0
	d := &decider{do: func(takes []bucket.Take, outs []bucket.Outcome) { decided += len(takes) }}
	question := toWire(&bucket.Take{Name: "api", Key: "k", Limit: limit(t, 1, 1, 1), Cost: 1})
	cases := []struct {
		name    string
		change  func()
		decided int
	}{
		{"without time left", func() {}, 0},
		{"of an impossible limit", func() { question.BudgetUs, question.Per = 1, 0 }, 0},
		{"of an impossible cost", func() { question.Per, question.Cost = 1, -1<<63 }, 0},
		{"that is good", func() { question.Cost = 1 }, 1},
	}
	for _, c := range cases {
		c.change()
		replies := &replies{}
		a := answerer{decider: d, stream: replies}
		if err := a.answer(t.Context(), []*peerv1.Check{question}); err != nil {
			t.Fatal(err)
		}
		if out := replies.sent[0].GetOutcomes().Outcomes[0]; (out.Error == "") != (c.decided == 1) || decided != c.decided {
			t.Errorf("a check %s was answered %v and decided %d times", c.name, out, decided)
		}
	}
}

// replies is the asked end of a stream that only remembers what was sent.
type replies struct {
	grpc.BidiStreamingServer[peerv1.Question, peerv1.Reply]
	sent []*peerv1.Reply
}

func (r *replies) Send(reply *peerv1.Reply) error {
	r.sent = append(r.sent, reply)
	return nil
}

// One check after another over the stream: the latency of a forwarded check.
func BenchmarkAsk(b *testing.B) {
	d := &decider{do: func(_ []bucket.Take, outs []bucket.Outcome) { clear(outs) }}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	s := NewServer(ServerConfig{ID: "b", Boot: 7, Decider: d})
	s.Start(l)
	defer s.Close(b.Context())
	to := node.Peer{ID: "b", Boot: 7, Addr: l.Addr().String()}
	p := NewPool(PoolConfig{ID: "a", Boot: 1})
	if err := p.SetPeers([]node.Peer{to}); err != nil {
		b.Fatal(err)
	}
	defer p.Close(b.Context())
	ctx, cancel := context.WithTimeout(b.Context(), time.Hour)
	defer cancel()
	takes, outs := []bucket.Take{{Name: "api", Key: "k", Limit: limit(b, 100, time.Minute, 20), Cost: 1}}, make([]bucket.Outcome, 1)
	b.ReportAllocs()
	for b.Loop() {
		p.Take(ctx, to, takes, outs)
		if outs[0].Err != nil {
			b.Fatal(outs[0].Err)
		}
	}
}
