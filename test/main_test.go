// Package test runs whole clusters of real processes and asks them over the network.
package test

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	tokenringv1 "github.com/tokenring/tokenring/proto/tokenring/v1"
	"github.com/tokenring/tokenring/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

// full asks for the long form of the tests that have one.
var full = os.Getenv("CHAOS") == "full"

// patient is the time budget of tests that want no degraded answer on a busy machine.
var patient = []string{"--forward-timeout", "2s"}

// A way is one of the ways to ask a node.
type way struct {
	name string
	// ask sends checks to a node, all at once or one after another, and returns as many
	// answers.
	ask func(ctx context.Context, n *harness.Node, checks []harness.Check) ([]harness.Answer, error)
}

// ways returns all of them, with connections that end with the test.
func ways(t *testing.T) []way {
	conns := &connections{conns: map[string]*grpc.ClientConn{}}
	t.Cleanup(conns.close)
	return []way{
		{"HTTP", askHTTP},
		{"gRPC", func(ctx context.Context, n *harness.Node, checks []harness.Check) ([]harness.Answer, error) {
			client, err := conns.client(n.GRPC)
			if err != nil {
				return nil, err
			}
			answers := make([]harness.Answer, len(checks))
			for i, c := range checks {
				resp, err := client.Check(ctx, toProto(c))
				if err != nil {
					return nil, err
				}
				answers[i] = fromProto(resp)
			}
			return answers, nil
		}},
		{"gRPC batch", func(ctx context.Context, n *harness.Node, checks []harness.Check) ([]harness.Answer, error) {
			client, err := conns.client(n.GRPC)
			if err != nil {
				return nil, err
			}
			req := &tokenringv1.CheckBatchRequest{}
			for _, c := range checks {
				req.Checks = append(req.Checks, toProto(c))
			}
			resp, err := client.CheckBatch(ctx, req)
			if err != nil {
				return nil, err
			}
			answers := make([]harness.Answer, len(checks))
			for i, r := range resp.Results {
				answers[i] = fromProto(r)
			}
			return answers, nil
		}},
	}
}

func askHTTP(ctx context.Context, n *harness.Node, checks []harness.Check) ([]harness.Answer, error) {
	answers := make([]harness.Answer, len(checks))
	for i, c := range checks {
		var err error
		if answers[i], err = n.Check(ctx, c); err != nil {
			return nil, err
		}
	}
	return answers, nil
}

func toProto(c harness.Check) *tokenringv1.CheckRequest {
	return &tokenringv1.CheckRequest{Limit: c.Limit, Key: &c.Key, Cost: c.Cost, Rate: c.Rate, Burst: c.Burst}
}

func fromProto(r *tokenringv1.CheckResponse) harness.Answer {
	a := harness.Answer{
		Allowed: r.Allowed, Limit: r.Limit, Key: r.Key, Burst: r.Burst, Remaining: r.Remaining,
		RetryAfterMS: r.RetryAfterMs, ResetAfterMS: r.ResetAfterMs, Degraded: r.Degraded, Node: r.Node,
	}
	if r.Error != nil {
		a.Error = &harness.Error{Code: r.Error.Code, Message: r.Error.Message}
	}
	return a
}

// connections keeps one connection to each node.
type connections struct {
	mu    sync.Mutex
	conns map[string]*grpc.ClientConn
}

func (c *connections) client(addr string) (tokenringv1.RateLimitServiceClient, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conns[addr] == nil {
		conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return nil, fmt.Errorf("dial %s: %w", addr, err)
		}
		c.conns[addr] = conn
	}
	return tokenringv1.NewRateLimitServiceClient(c.conns[addr]), nil
}

func (c *connections) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.conns {
		conn.Close()
	}
}

// inTime returns a context for one round of checks.
func inTime(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), harness.Slow)
	t.Cleanup(cancel)
	return ctx
}

// quantile returns the value that the given part of sorted durations does not exceed.
func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}
