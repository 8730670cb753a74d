package client

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	tokenringv1 "github.com/tokenring/tokenring/proto/tokenring/v1"
	"github.com/tokenring/tokenring/test/wait"
)

// cluster is a fake node: it allows everything but what is asked of the limit "banned",
// answers the checks of a message in reverse, and says how many messages it has read.
type cluster struct {
	tokenringv1.UnimplementedRateLimitServiceServer
	name     string
	messages atomic.Int64
	deaf     atomic.Bool // reads and does not answer
}

func (c *cluster) CheckStream(s grpc.BidiStreamingServer[tokenringv1.CheckBatchRequest, tokenringv1.CheckBatchResponse]) error {
	for {
		req, err := s.Recv()
		if err != nil {
			return err
		}
		c.messages.Add(1)
		if c.deaf.Load() {
			continue
		}
		resp := &tokenringv1.CheckBatchResponse{}
		for _, r := range slices.Backward(req.Checks) {
			a := &tokenringv1.CheckResponse{Id: r.Id, Allowed: true, Limit: r.Limit, Key: r.GetKey(), Node: c.name, Remaining: r.GetCost(), ResetAfterMs: -1}
			switch r.Limit {
			case "banned":
				a.Allowed, a.RetryAfterMs = false, 1500
			case "apo":
				a = &tokenringv1.CheckResponse{Id: r.Id, Error: &tokenringv1.Error{Code: "unknown_limit", Message: "no such limit"}}
			}
			resp.Results = append(resp.Results, a)
		}
		if err := s.Send(resp); err != nil {
			return err
		}
	}
}

// serve runs a fake node and returns its address and what ends it.
func serve(t *testing.T, c *cluster) (addr string, stop func()) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	tokenringv1.RegisterRateLimitServiceServer(s, c)
	var running sync.WaitGroup
	running.Go(func() { _ = s.Serve(l) }) // ends with Stop
	stop = func() { s.Stop(); running.Wait() }
	t.Cleanup(stop)
	return l.Addr().String(), stop
}

func start(t *testing.T, addrs ...string) *Client {
	t.Helper()
	c, err := New(Config{Addrs: addrs, Timeout: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	c.Start()
	t.Cleanup(func() {
		for range 2 {
			if err := c.Close(context.Background()); err != nil {
				t.Error(err)
			}
		}
	})
	return c
}

func TestAnswers(t *testing.T) {
	addr, _ := serve(t, &cluster{name: "a"})
	c := start(t, addr)
	got, err := c.Allow(t.Context(), "api", "user:1")
	if want := (Answer{Allowed: true, Limit: "api", Key: "user:1", Node: "a", Remaining: 1, ResetAfter: Never}); err != nil || got != want {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
	got, err = c.Check(t.Context(), Check{Limit: "banned", Cost: -3})
	if err != nil || got.Allowed || got.RetryAfter != 1500*time.Millisecond || got.Key != "" || got.Remaining != -3 {
		t.Errorf("%+v, %v", got, err)
	}
	_, err = c.Allow(t.Context(), "apo", "k")
	if e, ok := errors.AsType[*Error](err); !ok || e.Code != "unknown_limit" {
		t.Errorf("an undefined limit: %v", err)
	}
	for _, c2 := range []Check{
		{Limit: "api", Key: "\xff"}, {Limit: "\xff"}, {Key: strings.Repeat("k", maxKey+1)}, {Limit: strings.Repeat("l", maxName+1)},
	} {
		if _, err := c.Check(t.Context(), c2); err == nil || !strings.Contains(err.Error(), invalid) {
			t.Errorf("a check that would end the stream: %v", err)
		}
	}
}

func TestBatchKeepsItsOrderBeyondOneMessage(t *testing.T) {
	addr, _ := serve(t, &cluster{name: "a"})
	c := start(t, addr)
	checks := make([]Check, 2000)
	for i := range checks {
		checks[i] = Check{Limit: "api", Key: "k", Cost: int64(i)}
	}
	checks[77].Limit = "apo"
	answers, err := c.CheckAll(t.Context(), checks)
	if err != nil {
		t.Fatal(err)
	}
	for i, a := range answers {
		if i == 77 && a.Err == nil || i != 77 && (a.Err != nil || a.Remaining != int64(i)) {
			t.Fatalf("answer %d: %+v", i, a)
		}
	}
}

func TestCallersShareMessages(t *testing.T) {
	node := &cluster{name: "a"}
	addr, _ := serve(t, node)
	c := start(t, addr)
	const callers, each = 200, 50
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for range each {
				if _, err := c.Allow(t.Context(), "api", "k"); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if n := node.messages.Load(); n > callers*each/2 {
		t.Errorf("%d checks took %d messages, want far fewer", callers*each, n)
	}
}

// When a node dies, its callers ask another one and see no error.
func TestAnotherNodeIsAsked(t *testing.T) {
	first, second := &cluster{name: "a"}, &cluster{name: "b"}
	addrA, stopA := serve(t, first)
	addrB, _ := serve(t, second)
	c := start(t, addrA, addrB)
	used := map[string]int{}
	wait.For(t, 20*time.Second, "both nodes to be used", func() bool {
		a, err := c.Allow(t.Context(), "api", "k")
		if err != nil {
			t.Fatal(err)
		}
		used[a.Node]++
		return used["a"] > 0 && used["b"] > 0
	})
	first.deaf.Store(true)
	var waiting sync.WaitGroup
	for range 20 {
		waiting.Go(func() {
			if a, err := c.Allow(t.Context(), "api", "k"); err != nil || a.Node != "b" {
				t.Errorf("%+v, %v, want an answer of the other node", a, err)
			}
		})
	}
	before := first.messages.Load()
	wait.For(t, 20*time.Second, "the first node to be asked", func() bool { return first.messages.Load() > before })
	stopA()
	waiting.Wait()
	for range 20 {
		if a, err := c.Allow(t.Context(), "api", "k"); err != nil || a.Node != "b" {
			t.Errorf("after the death: %+v, %v", a, err)
		}
	}
}

func TestNobodyThere(t *testing.T) {
	if _, err := New(Config{}); err == nil {
		t.Error("a client without an address was made")
	}
	c := start(t, "127.0.0.1:1")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := c.Allow(ctx, "api", "k"); err == nil || ctx.Err() != nil {
		t.Errorf("nobody listens: %v, want an error long before the deadline", err)
	}
}
