package peer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"github.com/tokenring/tokenring/bucket"
	"github.com/tokenring/tokenring/node"
	peerv1 "github.com/tokenring/tokenring/proto/peer/v1"
	"github.com/tokenring/tokenring/transport/mux"
)

// PoolConfig says who asks.
type PoolConfig struct {
	ID     string
	Boot   uint64
	Teller Teller // nil has nothing to tell
}

// Pool asks other nodes, and tells them things, on one stream each to each of their boots.
type Pool struct {
	config PoolConfig

	mu     sync.RWMutex // guards what follows; not held while anything is asked
	links  map[uint64]*link
	closed bool
}

type link struct {
	*mux.Mux[*peerv1.Check, *peerv1.Outcome]
	conn    *grpc.ClientConn
	telling *telling // nil if there is nothing to tell
}

func (l *link) close(ctx context.Context) error {
	if l.telling != nil {
		l.telling.cancel()
		l.telling.running.Wait()
	}
	return errors.Join(l.Mux.Close(ctx), l.conn.Close())
}

// NewPool returns a pool that knows nobody.
func NewPool(c PoolConfig) *Pool { return &Pool{config: c, links: map[uint64]*link{}} }

// SetPeers connects to the boots that are new and lets go of those that are not named.
func (p *Pool) SetPeers(peers []node.Peer) error {
	named := make(map[uint64]bool, len(peers))
	var errs []error
	for _, to := range peers {
		named[to.Boot] = true
		errs = append(errs, p.connect(to))
	}
	for _, l := range p.drop(func(boot uint64) bool { return !named[boot] }) {
		errs = append(errs, l.close(context.Background()))
	}
	return errors.Join(errs...)
}

// Close lets go of all. It may be called twice.
func (p *Pool) Close(ctx context.Context) error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	var errs []error
	for _, l := range p.drop(func(uint64) bool { return true }) {
		errs = append(errs, l.close(ctx))
	}
	return errors.Join(errs...)
}

// Connected reports whether the stream to a boot is open.
func (p *Pool) Connected(boot uint64) bool {
	l := p.link(boot)
	return l != nil && l.Up()
}

// Take asks a node: outs[i] for takes[i].
func (p *Pool) Take(ctx context.Context, to node.Peer, takes []bucket.Take, outs []bucket.Outcome) {
	l := p.link(to.Boot)
	if l == nil {
		fillErr(outs, nil, node.ErrDown)
		return
	}
	questions := make([]*peerv1.Check, len(takes))
	for i := range takes {
		questions[i] = toWire(&takes[i])
	}
	replies, answered := make([]*peerv1.Outcome, len(takes)), make([]bool, len(takes))
	err := l.Do(ctx, questions, replies, answered)
	for i := range replies {
		if answered[i] {
			outs[i] = outcomeFromWire(replies[i])
		}
	}
	switch {
	case errors.Is(err, mux.ErrLost):
		err = node.ErrLost
	case errors.Is(err, mux.ErrDown):
		err = node.ErrDown
	}
	fillErr(outs, answered, err)
}

// fillErr gives the error to every outcome that was not answered.
func fillErr(outs []bucket.Outcome, answered []bool, err error) {
	for i := range outs {
		if answered == nil || !answered[i] {
			outs[i] = bucket.Outcome{Err: err}
		}
	}
}

func (p *Pool) link(boot uint64) *link {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.links[boot]
}

func (p *Pool) drop(which func(boot uint64) bool) []*link {
	p.mu.Lock()
	defer p.mu.Unlock()
	var dropped []*link
	for boot, l := range p.links {
		if which(boot) {
			dropped = append(dropped, l)
			delete(p.links, boot)
		}
	}
	return dropped
}

func (p *Pool) connect(to node.Peer) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.links[to.Boot] != nil {
		return nil
	}
	conn, err := dial(to.Addr)
	if err != nil {
		return err
	}
	l := &link{conn: conn, Mux: mux.New(mux.Config[*peerv1.Check, *peerv1.Outcome]{
		Open: func(ctx context.Context) (mux.Stream[*peerv1.Check, *peerv1.Outcome], error) {
			return open(ctx, conn, p.hello(to.Boot))
		},
		Tag: func(c *peerv1.Check, number uint64, left time.Duration) {
			c.Seq, c.BudgetUs = number, uint32(min(left.Microseconds(), 1<<32-1))
		},
		Number:   func(o *peerv1.Outcome) uint64 { return o.Seq },
		MaxBatch: maxChecks,
	})}
	l.Start()
	if p.config.Teller != nil {
		l.telling = p.startTelling(to)
	}
	p.links[to.Boot] = l
	return nil
}

func (p *Pool) hello(to uint64) *peerv1.Hello {
	return &peerv1.Hello{Id: p.config.ID, Boot: p.config.Boot, ToBoot: to}
}

func dial(addr string) (*grpc.ClientConn, error) {
	conn, err := grpc.NewClient("passthrough:///"+addr,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		// Another node is worth trying several times a second.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 300 * time.Millisecond},
			MinConnectTimeout: time.Second,
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}),
	)
	if err != nil {
		return nil, fmt.Errorf("dial node: %w", err)
	}
	return conn, nil
}

// asking is the asker's end of a stream.
type asking struct {
	grpc.BidiStreamingClient[peerv1.Question, peerv1.Reply]
}

// open opens a stream and exchanges hellos.
func open(ctx context.Context, conn *grpc.ClientConn, hello *peerv1.Hello) (asking, error) {
	stream, err := peerv1.NewPeerClient(conn).Ask(ctx)
	if err != nil {
		return asking{}, fmt.Errorf("open stream: %w", err)
	}
	if err := stream.Send(&peerv1.Question{Kind: &peerv1.Question_Hello{Hello: hello}}); err != nil {
		return asking{}, fmt.Errorf("send hello: %w", err)
	}
	reply, err := stream.Recv()
	if err != nil {
		return asking{}, fmt.Errorf("receive hello: %w", err)
	}
	return asking{stream}, isBoot(reply.GetHello(), hello.ToBoot)
}

func (a asking) Send(checks []*peerv1.Check) error {
	return a.BidiStreamingClient.Send(&peerv1.Question{Kind: &peerv1.Question_Checks{Checks: &peerv1.Checks{Checks: checks}}})
}

func (a asking) Recv() ([]*peerv1.Outcome, error) {
	reply, err := a.BidiStreamingClient.Recv()
	if err != nil {
		return nil, err
	}
	return reply.GetOutcomes().GetOutcomes(), nil
}
