package grpcapi

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/tokenring/tokenring/bucket"
	"github.com/tokenring/tokenring/node"
	tokenringv1 "github.com/tokenring/tokenring/proto/tokenring/v1"
	"github.com/tokenring/tokenring/transport/identity"
)

// A limiter answers by the name of the limit and keeps what it was asked.
type limiter struct {
	mu    sync.Mutex
	calls [][]node.Check
	// A check of the limit slow waits until this is closed, or its caller has gone.
	slow chan struct{}
	gone chan struct{} // told when a caller of slow has gone
	in   chan struct{} // told when a check of slow waits
}

func newLimiter() *limiter {
	return &limiter{slow: make(chan struct{}), gone: make(chan struct{}, 100), in: make(chan struct{}, 100)}
}

func (l *limiter) Check(ctx context.Context, checks []node.Check, answers []node.Answer) {
	l.mu.Lock()
	l.calls = append(l.calls, slices.Clone(checks))
	l.mu.Unlock()
	for i, c := range checks {
		if c.Limit == "slow" {
			l.in <- struct{}{}
			select {
			case <-l.slow:
			case <-ctx.Done():
				l.gone <- struct{}{}
			}
		}
		answers[i] = byName(c)
	}
}

func (l *limiter) asked() [][]node.Check {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.calls)
}

func byName(c node.Check) node.Answer {
	a := node.Answer{Limit: c.Limit, Key: c.Key, Node: "node-2"}
	a.Decision = bucket.Decision{Allowed: true, Burst: 20, Remaining: 19, ResetAfter: 600*time.Millisecond - 1}
	switch {
	case c.Inline:
		a.Limit, a.Burst = node.InlineLimit, c.Rule.Burst()
	case c.Limit == "":
		a.Limit = node.DefaultLimit
	case c.Limit == "apo":
		return node.Answer{Err: &node.UnknownLimitError{Name: "apo"}}
	case c.Limit == "denied":
		a.Decision = bucket.Decision{Burst: 20, RetryAfter: time.Second + 1, ResetAfter: 12 * time.Second}
	case c.Limit == "never":
		a.Decision = bucket.Decision{Burst: 20, Remaining: 3, RetryAfter: bucket.Never, ResetAfter: bucket.Never}
	case c.Limit == "partners":
		a.Unlimited = true
	case c.Limit == "lost":
		a.Degraded, a.Allowed = true, false
	}
	return a
}

// start runs a server on a free port. Callers on loopback are trusted, and it is a proxy.
func start(t *testing.T, l *limiter) (*Server, *grpc.ClientConn) {
	t.Helper()
	return startWith(t, l, 0)
}

// startWith is start with a time for answers to be taken.
func startWith(t *testing.T, l *limiter, sendTimeout time.Duration) (*Server, *grpc.ClientConn) {
	t.Helper()
	loopback := []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := New(Config{Limiter: l, Identity: identity.New(identity.Config{TrustedProxies: loopback, TrustedCallers: loopback}), SendTimeout: sendTimeout})
	s.Start(ln)
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = s.Close(ctx) // hard: what a test wants to see of closing, it looks at itself
	})
	return s, dial(t, ln.Addr().String())
}

func dial(t *testing.T, addr string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// within gives a test that hangs an end.
func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func openStream(t *testing.T, ctx context.Context, conn *grpc.ClientConn) grpc.BidiStreamingClient[tokenringv1.CheckBatchRequest, tokenringv1.CheckBatchResponse] {
	t.Helper()
	stream, err := tokenringv1.NewRateLimitServiceClient(conn).CheckStream(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

func batch(checks ...*tokenringv1.CheckRequest) *tokenringv1.CheckBatchRequest {
	return &tokenringv1.CheckBatchRequest{Checks: checks}
}
