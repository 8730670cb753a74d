package grpcapi

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/tokenring/tokenring/node"
	tokenringv1 "github.com/tokenring/tokenring/proto/tokenring/v1"
	"github.com/tokenring/tokenring/transport/identity"
	"github.com/tokenring/tokenring/transport/request"
)

// Check decides one check.
func (s *Server) Check(ctx context.Context, m *tokenringv1.CheckRequest) (*tokenringv1.CheckResponse, error) {
	res := s.decide(ctx, s.client(ctx), []*tokenringv1.CheckRequest{m})[0]
	if e := res.GetError(); e != nil {
		return nil, status.Error(statusOf(request.Code(e.GetCode())), e.GetMessage())
	}
	return res, nil
}

// CheckBatch decides a batch.
func (s *Server) CheckBatch(ctx context.Context, m *tokenringv1.CheckBatchRequest) (*tokenringv1.CheckBatchResponse, error) {
	return &tokenringv1.CheckBatchResponse{Results: s.decide(ctx, s.client(ctx), m.GetChecks())}, nil
}

// client says who makes a call.
func (s *Server) client(ctx context.Context) identity.Client {
	var c peer.Peer
	if p, ok := peer.FromContext(ctx); ok {
		c = *p
	}
	return s.identity.Resolve(identity.Peer(c.Addr), metadata.ValueFromIncomingContext(ctx, "x-forwarded-for"))
}

// decide decides checks together and returns an answer or an error for each, in order.
func (s *Server) decide(ctx context.Context, client identity.Client, checks []*tokenringv1.CheckRequest) []*tokenringv1.CheckResponse {
	var (
		messages = make([]tokenringv1.CheckResponse, len(checks))
		results  = make([]*tokenringv1.CheckResponse, len(checks))
		asked    = make([]node.Check, 0, len(checks))
		places   = make([]int, 0, len(checks)) // of those that are asked
	)
	for i, m := range checks {
		results[i] = &messages[i]
		results[i].Id = m.GetId()
		c, err := requestOf(m).Check(client)
		if err != nil {
			results[i].Error = errorOf(err)
			continue
		}
		asked, places = append(asked, c), append(places, i)
	}
	if len(asked) == 0 {
		return results
	}
	answers := make([]node.Answer, len(asked))
	s.limiter.Check(ctx, asked, answers)
	for i := range answers {
		fill(results[places[i]], &answers[i])
	}
	return results
}

func requestOf(m *tokenringv1.CheckRequest) *request.Request {
	r := &request.Request{Limit: m.GetLimit(), Key: m.Key, Cost: m.Cost, Burst: m.Burst}
	if m.GetRate() != "" {
		r.Rate = &m.Rate
	}
	return r
}

func fill(m *tokenringv1.CheckResponse, a *node.Answer) {
	if a.Err != nil {
		m.Error = errorOf(a.Err)
		return
	}
	f := request.NewFigures(a)
	m.Allowed = a.Allowed
	m.Limit = a.Limit
	m.Key = a.Key
	m.Burst = f.Burst
	m.Remaining = f.Remaining
	m.RetryAfterMs = request.InUnits(f.RetryAfter, time.Millisecond)
	m.ResetAfterMs = request.InUnits(f.ResetAfter, time.Millisecond)
	m.Degraded = a.Degraded
	m.Node = a.Node
}

func errorOf(err error) *tokenringv1.Error {
	e := request.AsError(err)
	return &tokenringv1.Error{Code: string(e.Code), Message: e.Message}
}

func statusOf(c request.Code) codes.Code {
	switch c {
	case request.PermissionDenied:
		return codes.PermissionDenied
	case request.UnknownLimit:
		return codes.NotFound
	}
	return codes.InvalidArgument
}
