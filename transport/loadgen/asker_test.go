package loadgen

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/tokenring/tokenring/node"
	"github.com/tokenring/tokenring/transport/client"
	"github.com/tokenring/tokenring/transport/grpcapi"
	"github.com/tokenring/tokenring/transport/httpapi"
	"github.com/tokenring/tokenring/transport/identity"
)

// limiter answers by what the key ends with, and counts the keys.
type limiter struct {
	mu    sync.Mutex
	asked map[string]int
}

func (l *limiter) Check(_ context.Context, checks []node.Check, answers []node.Answer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, c := range checks {
		l.asked[c.Limit+" "+c.Key]++
		answers[i] = node.Answer{Limit: c.Limit, Key: c.Key, Node: "a", Degraded: strings.HasSuffix(c.Key, "degraded")}
		answers[i].Allowed = !strings.HasSuffix(c.Key, "denied")
		if c.Limit == "apo" {
			answers[i] = node.Answer{Err: &node.UnknownLimitError{Name: "apo"}}
		}
	}
}

// serve starts both front ends.
func serve(t *testing.T, l *limiter) (http, grpc string) {
	t.Helper()
	listen := func() net.Listener {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		return ln
	}
	who := identity.New(identity.Config{TrustedCallers: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}})
	h, g := httpapi.New(httpapi.Config{Limiter: l, Identity: who}), grpcapi.New(grpcapi.Config{Limiter: l, Identity: who})
	hl, gl := listen(), listen()
	h.Start(hl)
	g.Start(gl)
	t.Cleanup(func() {
		_ = h.Close(context.Background())
		_ = g.Close(context.Background())
	})
	return hl.Addr().String(), gl.Addr().String()
}

// Every way to ask sends each key once, by its limit, and counts what was answered.
func TestAskers(t *testing.T) {
	l := &limiter{}
	http, grpc := serve(t, l)
	conns, err := Dial([]string{grpc}, 1)
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.New(client.Config{Addrs: []string{grpc}})
	if err != nil {
		t.Fatal(err)
	}
	c.Start()
	t.Cleanup(func() {
		_ = c.Close(context.Background())
		_ = conns[0].Close()
	})
	batches := []struct {
		keys []string
		want Tally
	}{
		{[]string{`a "quoted" key`}, Tally{Allowed: 1}},
		{[]string{"denied"}, Tally{Denied: 1}},
		{[]string{"degraded"}, Tally{Allowed: 1, Degraded: 1}},
		{[]string{"a", "b", "denied", "degraded", `"allowed":true`}, Tally{Allowed: 4, Denied: 1, Degraded: 1}},
		{[]string{"c"}, Tally{Allowed: 1}},
	}
	for name, open := range map[string]func(limit string) func(int) (Asker, error){
		"HTTP":   func(limit string) func(int) (Asker, error) { return HTTP([]string{http}, limit) },
		"gRPC":   func(limit string) func(int) (Asker, error) { return GRPC(conns, limit) },
		"client": func(limit string) func(int) (Asker, error) { return Client(c, limit) },
	} {
		t.Run(name, func(t *testing.T) {
			a, err := open("api")(0)
			if err != nil {
				t.Fatal(err)
			}
			for _, b := range batches {
				l.asked = map[string]int{}
				got := Tally{}
				if err := a.Ask(t.Context(), b.keys, &got); err != nil || got != b.want {
					t.Errorf("%q: %+v, error %v, want %+v", b.keys, got, err, b.want)
				}
				for _, key := range b.keys {
					if n := l.asked["api "+key]; n != 1 || len(l.asked) != len(b.keys) {
						t.Errorf("%q was asked %d times in %v", key, n, l.asked)
					}
				}
			}
			if a, err = open("apo")(0); err != nil {
				t.Fatal(err)
			}
			for _, keys := range [][]string{{"a"}, {"a", "b"}} {
				err := a.Ask(t.Context(), keys, &Tally{})
				if err == nil || !strings.Contains(err.Error(), "is not defined") {
					t.Errorf("%q of an unknown limit: error %v", keys, err)
				}
			}
		})
	}
}
