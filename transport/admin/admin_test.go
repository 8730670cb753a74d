package admin

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tokenring/tokenring/node/authority"
	"github.com/tokenring/tokenring/node/keeper"
	"github.com/tokenring/tokenring/node/members"
)

// cluster is a fake of everything that the admin port shows.
type cluster struct{ connected map[uint64]bool }

func (cluster) View() members.View {
	return members.View{
		{ID: "b", Boot: 1, State: members.Active, Peer: "127.0.0.1:1", Self: true},
		{ID: "a", Boot: 2, State: members.Active, Peer: "127.0.0.1:2"},
		{ID: "c", Boot: 3, State: members.Active, Peer: "127.0.0.1:3"},
		{ID: "d", Boot: 4, State: members.Leaving, Peer: "127.0.0.1:4"},
		{ID: "e", Boot: 5, State: members.Dead, Peer: "127.0.0.1:5"},
		{ID: "f", Boot: 6, State: members.Joining, Peer: "127.0.0.1:6"},
	}
}

func (cluster) Counts() authority.Counts {
	return authority.Counts{Holders: map[string]int{"b": 1365, "a": 1364, "c": 1360, "d": 4}}
}

func (cluster) Places() []keeper.Place {
	return []keeper.Place{
		{Place: authority.Place{Role: authority.Holds, Epoch: authority.Epoch{Counter: 4, Boot: 1}, Owner: "b", Holder: "b", Heir: "a", Copied: true}, Buckets: 7},
		{Place: authority.Place{Epoch: authority.Epoch{Counter: 2, Boot: 2}, Owner: "a", Holder: "a", Copy: true, Complete: true}, Buckets: 2},
		{Place: authority.Place{Role: authority.Claiming, Owner: "b", Copy: true}},
	}
}

func (cluster) NotReady() string { return "waiting for 1 of 2 partitions" }

func (c cluster) Connected(boot uint64) bool { return c.connected[boot] }

func handler() http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "tokenring_answer"}, func() float64 { return 42 }))
	c := cluster{connected: map[uint64]bool{2: true}}
	return Handler(Config{Metrics: registry, Cluster: c, Ring: c, Connections: c})
}

func ask(h http.Handler, method, path string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(method, path, nil))
	return w
}

func TestMembers(t *testing.T) {
	w := ask(handler(), http.MethodGet, "/v1/members")
	want := `{"members":[` +
		`{"id":"b","state":"active","addr":"127.0.0.1:1","partitions":1365,"self":true},` +
		`{"id":"a","state":"active","addr":"127.0.0.1:2","partitions":1364,"self":false},` +
		// Listed by gossip, but there is no stream to it.
		`{"id":"c","state":"suspect","addr":"127.0.0.1:3","partitions":1360,"self":false},` +
		`{"id":"d","state":"leaving","addr":"127.0.0.1:4","partitions":4,"self":false},` +
		`{"id":"e","state":"dead","addr":"127.0.0.1:5","partitions":0,"self":false},` +
		`{"id":"f","state":"joining","addr":"127.0.0.1:6","partitions":0,"self":false}]}`
	if got := strings.TrimSpace(w.Body.String()); w.Code != http.StatusOK || got != want {
		t.Errorf("%d\n%s\nwant\n%s", w.Code, got, want)
	}
	if got := w.Header().Get("Content-Type"); got != "application/json" {
		t.Errorf("Content-Type %q", got)
	}
}

func TestRing(t *testing.T) {
	w := ask(handler(), http.MethodGet, "/v1/ring")
	want := `{"node":"b","ready":false,"not_ready":"waiting for 1 of 2 partitions","partitions":[` +
		`{"partition":0,"owner":"b","holder":"b","epoch":4,"role":"holding","heir":"a","copied":true,"copy":"none","buckets":7},` +
		`{"partition":1,"owner":"a","holder":"a","epoch":2,"role":"none","heir":"","copied":false,"copy":"complete","buckets":2},` +
		`{"partition":2,"owner":"b","holder":"","epoch":0,"role":"claiming","heir":"","copied":false,"copy":"partial","buckets":0}]}`
	if got := strings.TrimSpace(w.Body.String()); w.Code != http.StatusOK || got != want {
		t.Errorf("%d\n%s\nwant\n%s", w.Code, got, want)
	}
}

func TestWhatIsThereAndWhatIsNot(t *testing.T) {
	only := MetricsOnly(prometheus.NewRegistry())
	for _, c := range []struct {
		h            http.Handler
		method, path string
		code         int
		in           string
	}{
		{handler(), http.MethodGet, "/metrics", 200, "tokenring_answer 42"},
		{handler(), http.MethodGet, "/debug/pprof/", 200, "goroutine"},
		{handler(), http.MethodGet, "/debug/pprof/goroutine?debug=1", 200, "goroutine profile"},
		{handler(), http.MethodGet, "/nothing", 404, `{"error":{"code":"not_found","message":"there is nothing at \"/nothing\""}}`},
		{handler(), http.MethodPost, "/v1/members", 405, `{"error":{"code":"method_not_allowed","message":"POST is not allowed here, but GET, HEAD"}}`},
		{only, http.MethodGet, "/metrics", 200, ""},
		{only, http.MethodGet, "/v1/members", 404, "not_found"},
		{only, http.MethodGet, "/debug/pprof/", 404, "not_found"},
	} {
		w := ask(c.h, c.method, c.path)
		if w.Code != c.code || !strings.Contains(w.Body.String(), c.in) {
			t.Errorf("%s %s: %d %s, want %d with %s", c.method, c.path, w.Code, w.Body, c.code, c.in)
		}
		if c.code == 405 && w.Header().Get("Allow") != "GET, HEAD" {
			t.Errorf("%s %s: Allow is %q", c.method, c.path, w.Header().Get("Allow"))
		}
	}
}

func TestServerStartsAndCloses(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := NewServer(handler(), slog.New(slog.DiscardHandler))
	s.Start(l)
	resp, err := http.Get("http://" + l.Addr().String() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Error(err)
	}
	resp.Body.Close()
	for range 2 {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}
	if _, err := net.Dial("tcp", l.Addr().String()); err == nil {
		t.Error("the port is still open")
	}
}
