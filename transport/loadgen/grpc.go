package loadgen

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	tokenringv1 "github.com/tokenring/tokenring/proto/tokenring/v1"
	"github.com/tokenring/tokenring/transport/client"
)

// callersPerConn is how many callers share a gRPC connection: each has a lock and a writer
// of its own, and one for all would be what is measured.
const callersPerConn = 50

// Dial opens so many connections that callers share them by the dozen, to the given
// addresses in turn.
func Dial(addrs []string, callers int) ([]*grpc.ClientConn, error) {
	var conns []*grpc.ClientConn
	for i := range max((callers-1)/callersPerConn+1, len(addrs)) {
		conn, err := grpc.NewClient("passthrough:///"+addrs[i%len(addrs)], grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return nil, fmt.Errorf("dial node: %w", err)
		}
		conns = append(conns, conn)
	}
	return conns, nil
}

// GRPC returns what opens callers that ask with unary calls.
func GRPC(conns []*grpc.ClientConn, limit string) func(caller int) (Asker, error) {
	return func(caller int) (Asker, error) {
		return &grpcAsker{client: tokenringv1.NewRateLimitServiceClient(conns[caller%len(conns)]), limit: limit}, nil
	}
}

type grpcAsker struct {
	client tokenringv1.RateLimitServiceClient
	limit  string
	one    tokenringv1.CheckRequest
	many   tokenringv1.CheckBatchRequest
}

func (a *grpcAsker) Ask(ctx context.Context, keys []string, t *Tally) error {
	if len(keys) == 1 {
		a.one.Limit, a.one.Key = a.limit, &keys[0]
		r, err := a.client.Check(ctx, &a.one)
		if err != nil {
			return fmt.Errorf("ask over gRPC: %w", err)
		}
		t.Count(r.Allowed, r.Degraded)
		return nil
	}
	for len(a.many.Checks) < len(keys) {
		a.many.Checks = append(a.many.Checks, &tokenringv1.CheckRequest{Limit: a.limit})
	}
	for i := range keys {
		a.many.Checks[i].Key = &keys[i]
	}
	r, err := a.client.CheckBatch(ctx, &a.many)
	if err != nil {
		return fmt.Errorf("ask over gRPC: %w", err)
	}
	for _, one := range r.Results {
		if one.Error != nil {
			return fmt.Errorf("ask over gRPC: %s", one.Error.Message)
		}
		t.Count(one.Allowed, one.Degraded)
	}
	return nil
}

// Client returns what opens callers that share one Go client, and so its streams.
func Client(c *client.Client, limit string) func(caller int) (Asker, error) {
	return func(int) (Asker, error) { return &clientAsker{client: c, limit: limit}, nil }
}

type clientAsker struct {
	client *client.Client
	limit  string
	checks []client.Check
}

func (a *clientAsker) Ask(ctx context.Context, keys []string, t *Tally) error {
	if len(keys) == 1 {
		r, err := a.client.Allow(ctx, a.limit, keys[0])
		if err == nil {
			t.Count(r.Allowed, r.Degraded)
		}
		return err
	}
	a.checks = a.checks[:0]
	for _, key := range keys {
		a.checks = append(a.checks, client.Check{Limit: a.limit, Key: key, Cost: 1})
	}
	answers, err := a.client.CheckAll(ctx, a.checks)
	if err != nil {
		return err
	}
	for i := range answers {
		if answers[i].Err != nil {
			return answers[i].Err
		}
		t.Count(answers[i].Allowed, answers[i].Degraded)
	}
	return nil
}
