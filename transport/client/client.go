// Package client asks a Tokenring cluster from a Go service.
//
//	c, err := client.New(client.Config{Addrs: []string{"10.0.0.1:8081", "10.0.0.2:8081"}})
//	...
//	c.Start()
//	defer c.Close(ctx)
//	a, err := c.Allow(ctx, "api", "user:123")
//	if err == nil && !a.Allowed { /* 429, try again after a.RetryAfter */ }
//
// All calls share one stream to each node, so that many callers cost little more than
// one: what is asked at the same time travels in one message. Any node answers for any
// key. Calls go to the nodes in turn; when one cannot be reached, or its stream ends
// before the answer, another one is asked, once. A check whose answer was lost may have
// been charged: asking again can charge twice, but never allow twice.
package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	tokenringv1 "github.com/tokenring/tokenring/proto/tokenring/v1"
	"github.com/tokenring/tokenring/transport/mux"
)

// Never is the duration of something that will not happen, such as the time until a
// bucket without refill is full.
const Never time.Duration = -1

// Config says which nodes to ask. Zero values stand for the defaults.
type Config struct {
	Addrs   []string          // host:port of gRPC ports; at least one
	Timeout time.Duration     // of a call whose context ends later or never; 1 s
	Dial    []grpc.DialOption // such as transport credentials; plain text unless given
}

// A Check is one question. Limit "" is the limit called default, and Key "" is this
// service's own address.
type Check struct {
	Limit string
	Key   string
	Cost  int64 // tokens: 0 looks without taking, below 0 gives back
}

// The longest key and the longest name of a limit, in bytes.
const (
	maxKey  = 1024
	maxName = 64
)

// validate refuses what would end the stream, and with it what all others wait for: text
// that is none, and messages beyond any bound.
func (c *Check) validate() error {
	switch {
	case len(c.Key) > maxKey:
		return &Error{invalid, fmt.Sprintf("key: has %d bytes: want at most %d", len(c.Key), maxKey)}
	case len(c.Limit) > maxName:
		return &Error{invalid, fmt.Sprintf("limit: has %d bytes: want at most %d", len(c.Limit), maxName)}
	case !utf8.ValidString(c.Key):
		return &Error{invalid, fmt.Sprintf("key: %q is not valid UTF-8", c.Key)}
	case !utf8.ValidString(c.Limit):
		return &Error{invalid, fmt.Sprintf("limit: %q is not valid UTF-8", c.Limit)}
	}
	return nil
}

const invalid = "invalid_argument"

// An Answer is what the cluster has decided. In a batch, Err says that this one check was
// wrong.
type Answer struct {
	Allowed    bool
	Limit      string
	Key        string
	Burst      int64         // tokens in a full bucket; -1 when unlimited
	Remaining  int64         // tokens left; -1 when unlimited
	RetryAfter time.Duration // until this cost could be allowed: 0 when it was, or Never
	ResetAfter time.Duration // until the bucket is full, or Never
	Degraded   bool          // the failure policy answered: figures mean nothing
	Node       string        // id of the node that decided
	Err        error
}

// An Error is what is wrong with a check.
type Error struct {
	Code    string // such as unknown_limit
	Message string
}

func (e *Error) Error() string { return e.Code + ": " + e.Message }

// Client asks a cluster. All its methods may be called at once.
type Client struct {
	timeout time.Duration
	links   []*link
	next    atomic.Uint64

	closeOnce sync.Once
	closeErr  error
}

type link struct {
	*mux.Mux[*tokenringv1.CheckRequest, *tokenringv1.CheckResponse]
	conn *grpc.ClientConn
}

// New returns a client that is not connected yet. Start connects it.
func New(c Config) (*Client, error) {
	if len(c.Addrs) == 0 {
		return nil, errors.New("no address given: a client needs at least one gRPC port of a node")
	}
	cl := &Client{timeout: c.Timeout}
	if cl.timeout == 0 {
		cl.timeout = time.Second
	}
	options := append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 500 * time.Millisecond},
			MinConnectTimeout: time.Second,
		}),
	}, c.Dial...)
	for _, addr := range c.Addrs {
		conn, err := grpc.NewClient(addr, options...)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("dial %s: %w", addr, err), cl.Close(context.Background()))
		}
		cl.links = append(cl.links, &link{conn: conn, Mux: mux.New(mux.Config[*tokenringv1.CheckRequest, *tokenringv1.CheckResponse]{
			Open: func(ctx context.Context) (mux.Stream[*tokenringv1.CheckRequest, *tokenringv1.CheckResponse], error) {
				return open(ctx, conn)
			},
			Tag:    func(r *tokenringv1.CheckRequest, number uint64, _ time.Duration) { r.Id = number },
			Number: func(r *tokenringv1.CheckResponse) uint64 { return r.Id },
		})})
	}
	return cl, nil
}

// Start connects to the nodes and keeps connected until Close.
func (c *Client) Start() {
	for _, l := range c.links {
		l.Start()
	}
}

// Close ends all connections and fails what waits. It may be called twice.
func (c *Client) Close(ctx context.Context) error {
	c.closeOnce.Do(func() {
		for _, l := range c.links {
			c.closeErr = errors.Join(c.closeErr, l.Mux.Close(ctx), l.conn.Close())
		}
	})
	return c.closeErr
}

// Allow takes one token.
func (c *Client) Allow(ctx context.Context, limit, key string) (Answer, error) {
	return c.Check(ctx, Check{Limit: limit, Key: key, Cost: 1})
}

// Check asks one question.
func (c *Client) Check(ctx context.Context, check Check) (Answer, error) {
	answers, err := c.CheckAll(ctx, []Check{check})
	if err != nil {
		return Answer{}, err
	}
	return answers[0], answers[0].Err
}

// CheckAll asks several questions at once: answers[i] belongs to checks[i], and checks of
// one bucket are decided in their order.
func (c *Client) CheckAll(ctx context.Context, checks []Check) ([]Answer, error) {
	for i := range checks {
		if err := checks[i].validate(); err != nil {
			return nil, fmt.Errorf("ask tokenring: %w", err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	first := c.pick(nil)
	responses, err := c.ask(ctx, first, checks)
	if err != nil && ctx.Err() == nil && len(c.links) > 1 {
		responses, err = c.ask(ctx, c.pick(first), checks)
	}
	if err != nil {
		return nil, fmt.Errorf("ask tokenring: %w", err)
	}
	answers := make([]Answer, len(responses))
	for i, r := range responses {
		answers[i] = answerOf(r)
	}
	return answers, nil
}

// pick returns the next link that is up, but not the one given. If none is up it returns
// the next one, which may be about to connect.
func (c *Client) pick(not *link) *link {
	turn := c.next.Add(1)
	var any *link
	for i := range c.links {
		l := c.links[(turn+uint64(i))%uint64(len(c.links))]
		if l == not {
			continue
		}
		if l.Up() {
			return l
		}
		if any == nil {
			any = l
		}
	}
	return any
}

func (c *Client) ask(ctx context.Context, l *link, checks []Check) ([]*tokenringv1.CheckResponse, error) {
	questions := make([]*tokenringv1.CheckRequest, len(checks))
	for i := range checks {
		questions[i] = &tokenringv1.CheckRequest{Limit: checks[i].Limit, Cost: &checks[i].Cost}
		if checks[i].Key != "" {
			questions[i].Key = &checks[i].Key
		}
	}
	responses, answered := make([]*tokenringv1.CheckResponse, len(checks)), make([]bool, len(checks))
	err := l.Do(ctx, questions, responses, answered)
	return responses, err
}

func answerOf(r *tokenringv1.CheckResponse) Answer {
	a := Answer{
		Allowed: r.Allowed, Limit: r.Limit, Key: r.Key, Burst: r.Burst, Remaining: r.Remaining,
		RetryAfter: milliseconds(r.RetryAfterMs), ResetAfter: milliseconds(r.ResetAfterMs),
		Degraded: r.Degraded, Node: r.Node,
	}
	if r.Error != nil {
		a.Err = &Error{Code: r.Error.Code, Message: r.Error.Message}
	}
	return a
}

func milliseconds(n int64) time.Duration {
	if n < 0 {
		return Never
	}
	return time.Duration(n) * time.Millisecond
}

// stream is a CheckStream as the mux sees it.
type stream struct {
	grpc.BidiStreamingClient[tokenringv1.CheckBatchRequest, tokenringv1.CheckBatchResponse]
}

func open(ctx context.Context, conn *grpc.ClientConn) (stream, error) {
	s, err := tokenringv1.NewRateLimitServiceClient(conn).CheckStream(ctx)
	if err != nil {
		return stream{}, fmt.Errorf("open stream: %w", err)
	}
	return stream{s}, nil
}

func (s stream) Send(checks []*tokenringv1.CheckRequest) error {
	return s.BidiStreamingClient.Send(&tokenringv1.CheckBatchRequest{Checks: checks})
}

func (s stream) Recv() ([]*tokenringv1.CheckResponse, error) {
	r, err := s.BidiStreamingClient.Recv()
	if err != nil {
		return nil, err
	}
	return r.GetResults(), nil
}
