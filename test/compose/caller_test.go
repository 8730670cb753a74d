package compose

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	pb "github.com/tokenring/tokenring/proto/tokenring/v1"
)

// A check is what the tests ask for.
type check struct{ limit, key, forwardedFor string }

// An answer is an answer of either protocol. Code is set in place of the others when a
// check was refused.
type answer struct {
	allowed, degraded bool
	key               string
	code              string
	via               string // the node that HAProxy asked
}

// ask sends a check through HAProxy. An error is what no caller should ever see.
type ask func(context.Context, check) (answer, error)

// callers are the ways through HAProxy, by protocol.
type callers struct {
	asks map[string]ask
	grpc pb.RateLimitServiceClient
}

func newCallers(t *testing.T, httpAddr, grpcAddr string) callers {
	t.Helper()
	web := &http.Client{Timeout: askLimit, Transport: &http.Transport{MaxIdleConnsPerHost: 8}}
	t.Cleanup(web.CloseIdleConnections)
	conn, err := grpc.NewClient(grpcAddr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	service := pb.NewRateLimitServiceClient(conn)
	return callers{grpc: service, asks: map[string]ask{
		"HTTP": func(ctx context.Context, c check) (answer, error) { return askHTTP(ctx, web, httpAddr, c) },
		"gRPC": func(ctx context.Context, c check) (answer, error) { return askGRPC(ctx, service, c) },
	}}
}

func askHTTP(ctx context.Context, client *http.Client, addr string, c check) (answer, error) {
	query := url.Values{"limit": {c.limit}}
	if c.key != "" {
		query.Set("key", c.key)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/v1/check?"+query.Encode(), nil)
	if err != nil {
		return answer{}, fmt.Errorf("make request: %w", err)
	}
	if c.forwardedFor != "" {
		req.Header.Set("X-Forwarded-For", c.forwardedFor)
	}
	resp, err := client.Do(req)
	if err != nil {
		return answer{}, fmt.Errorf("send check: %w", err)
	}
	defer resp.Body.Close()
	var body struct {
		Allowed, Degraded bool
		Key               string
		Error             struct{ Code string }
	}
	if err := json.NewDecoder(resp.Body).Decode(&body); err != nil {
		return answer{}, fmt.Errorf("read answer with status %d: %w", resp.StatusCode, err)
	}
	a := answer{body.Allowed, body.Degraded, body.Key, body.Error.Code, resp.Header.Get("X-Answered-By")}
	switch resp.StatusCode {
	case http.StatusOK, http.StatusTooManyRequests, http.StatusForbidden:
		return a, nil
	default:
		return a, fmt.Errorf("status %d of %s: %s", resp.StatusCode, a.via, a.code)
	}
}

func askGRPC(ctx context.Context, client pb.RateLimitServiceClient, c check) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	if c.forwardedFor != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "x-forwarded-for", c.forwardedFor)
	}
	req := &pb.CheckRequest{Limit: c.limit}
	if c.key != "" {
		req.Key = &c.key
	}
	var header metadata.MD
	// A connection that is still being made is no error of the cluster's.
	resp, err := client.Check(ctx, req, grpc.Header(&header), grpc.WaitForReady(true))
	var a answer
	if via := header.Get("x-answered-by"); len(via) > 0 {
		a.via = via[0]
	}
	switch status.Code(err) {
	case codes.OK:
		a.allowed, a.degraded, a.key = resp.Allowed, resp.Degraded, resp.Key
		return a, nil
	case codes.PermissionDenied:
		a.code = "permission_denied"
		return a, nil
	default:
		return a, fmt.Errorf("call by way of %q: %w", a.via, err)
	}
}

// streamOne has one check of a stream answered before it sends the next, which only works
// if nothing on the way waits for the stream to end.
func streamOne(ctx context.Context, stream pb.RateLimitService_CheckStreamClient, id uint64) (*pb.CheckResponse, error) {
	req := &pb.CheckBatchRequest{Checks: []*pb.CheckRequest{{Limit: "default", Id: id}}}
	if err := stream.Send(req); err != nil {
		return nil, fmt.Errorf("send check %d: %w", id, err)
	}
	resp, err := stream.Recv()
	if err != nil {
		return nil, fmt.Errorf("receive answer %d: %w", id, err)
	}
	if len(resp.Results) != 1 || resp.Results[0].Id != id {
		return nil, fmt.Errorf("check %d got %v", id, resp.Results)
	}
	return resp.Results[0], nil
}
