// Package admin is the operator's port: metrics, members and profiles. It listens on
// loopback unless told otherwise, since it shows everything and asks nobody who they are.
package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/tokenring/tokenring/node/authority"
	"github.com/tokenring/tokenring/node/keeper"
	"github.com/tokenring/tokenring/node/members"
)

// A Cluster shows who its members are.
type Cluster interface {
	View() members.View
}

// Ring shows who holds what, as far as this node knows.
type Ring interface {
	Counts() authority.Counts
	Places() []keeper.Place // by partition
	NotReady() string
}

// Connections shows whether the stream to a boot is open.
type Connections interface {
	Connected(boot uint64) bool
}

// Config says what is shown.
type Config struct {
	Metrics     prometheus.Gatherer
	Cluster     Cluster
	Ring        Ring
	Connections Connections
}

// Handler returns everything of the admin port.
func Handler(c Config) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", MetricsHandler(c.Metrics))
	mux.HandleFunc("GET /v1/members", func(w http.ResponseWriter, _ *http.Request) {
		respond(w, http.StatusOK, memberList{listMembers(c)})
	})
	mux.HandleFunc("GET /v1/ring", func(w http.ResponseWriter, _ *http.Request) {
		respond(w, http.StatusOK, showRing(c))
	})
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	return withJSONErrors(mux)
}

// MetricsHandler returns the metrics alone, for scrapers that must not see the rest.
func MetricsHandler(g prometheus.Gatherer) http.Handler {
	return promhttp.HandlerFor(g, promhttp.HandlerOpts{})
}

// MetricsOnly returns a handler that knows the path /metrics and no other.
func MetricsOnly(g prometheus.Gatherer) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", MetricsHandler(g))
	return withJSONErrors(mux)
}

type memberList struct {
	Members []member `json:"members"`
}

type member struct {
	ID         string `json:"id"`
	State      string `json:"state"`
	Addr       string `json:"addr"`
	Partitions int    `json:"partitions"`
	Self       bool   `json:"self"`
}

// suspect is the state of a member that gossip lists and this node has no stream to.
const suspect = "suspect"

func listMembers(c Config) []member {
	partitions := c.Ring.Counts().Holders
	list := []member{}
	for _, m := range c.Cluster.View() {
		shown := member{ID: m.ID, State: m.State.String(), Addr: m.Peer, Self: m.Self}
		if m.State != members.Dead {
			shown.Partitions = partitions[m.ID]
		}
		if m.State == members.Active && !m.Self && !c.Connections.Connected(m.Boot) {
			shown.State = suspect
		}
		list = append(list, shown)
	}
	return list
}

func respond(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	// What fails here is the connection, and nobody is left to be told.
	_ = json.NewEncoder(w).Encode(body)
}

// withJSONErrors answers what the mux does not know in the form of all other errors.
func withJSONErrors(mux *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, pattern := mux.Handler(r); pattern != "" {
			mux.ServeHTTP(w, r)
			return
		}
		probe := &statusProbe{header: http.Header{}}
		mux.ServeHTTP(probe, r)
		code, message := "not_found", fmt.Sprintf("there is nothing at %q", r.URL.Path)
		if probe.status == http.StatusMethodNotAllowed {
			w.Header().Set("Allow", probe.header.Get("Allow"))
			code, message = "method_not_allowed", fmt.Sprintf("%s is not allowed here, but %s", r.Method, probe.header.Get("Allow"))
		}
		respond(w, max(probe.status, http.StatusNotFound), map[string]any{"error": map[string]string{"code": code, "message": message}})
	})
}

// statusProbe learns what the mux would answer to a request that no pattern matches.
type statusProbe struct {
	header http.Header
	status int
}

func (p *statusProbe) Header() http.Header         { return p.header }
func (p *statusProbe) WriteHeader(status int)      { p.status = status }
func (p *statusProbe) Write(b []byte) (int, error) { return len(b), nil }

// Server serves one handler on one listener.
type Server struct {
	http    *http.Server
	running sync.WaitGroup
}

// NewServer returns a server that does not listen yet.
func NewServer(h http.Handler, l *slog.Logger) *Server {
	return &Server{http: &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 5 * time.Second,
		IdleTimeout:       2 * time.Minute,
		ErrorLog:          slog.NewLogLogger(l.Handler(), slog.LevelWarn),
	}}
}

// Start serves on a listener, which belongs to the server from here on, until Close.
func (s *Server) Start(l net.Listener) {
	s.running.Go(func() {
		// It ends with Close, or when the listener breaks: whoever scrapes notices that.
		_ = s.http.Serve(l)
	})
}

// Close answers what is open until ctx ends, then cuts it off. It may be called twice.
func (s *Server) Close(ctx context.Context) error {
	err := s.http.Shutdown(ctx)
	if err != nil {
		err = errors.Join(fmt.Errorf("close admin port: %w", err), s.http.Close())
	}
	s.running.Wait()
	return err
}
