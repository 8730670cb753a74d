package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tokenring/tokenring/bucket"
	"github.com/tokenring/tokenring/node"
	"github.com/tokenring/tokenring/node/members"
	"github.com/tokenring/tokenring/redisstore"
	"github.com/tokenring/tokenring/ring"
	"github.com/tokenring/tokenring/transport/admin"
	"github.com/tokenring/tokenring/transport/grpcapi"
	"github.com/tokenring/tokenring/transport/httpapi"
	"github.com/tokenring/tokenring/transport/identity"
	"github.com/tokenring/tokenring/transport/peer"
)

// patience is how long an end waits for what is open before it is cut off.
const patience = 5 * time.Second

// serve runs one node until ctx ends, and then leaves the cluster.
func serve(ctx context.Context, s Settings, stderr io.Writer) error {
	log := slog.New(slog.NewTextHandler(stderr, nil)).With("id", s.ID)
	ports, err := listen(s)
	if err != nil {
		return err
	}
	p, err := assemble(s, ports, log)
	if err != nil {
		return errors.Join(err, ports.close())
	}
	err = p.start(ctx)
	if err == nil {
		log.Info("started", "version", buildInfo().Version, "http", ports.http.Addr(), "grpc", ports.grpc.Addr(),
			"admin", ports.admin.Addr(), "peer", ports.peer.Addr(), "gossip", p.members.Gossip(), "backend", s.Backend)
		select {
		case <-ctx.Done():
			log.Info("leaving", "drain", s.Drain)
			p.leave(s.Drain)
		case err = <-p.members.Failed():
		}
	}
	return errors.Join(err, p.close())
}

// A process is one node with everything that makes it one.
type process struct {
	settings Settings
	log      *slog.Logger
	ports    *ports
	buckets  *bucket.Store
	redis    *redisstore.Store // nil without a URL
	node     *node.Node
	pool     *peer.Pool
	peers    *peer.Server
	members  *members.Members
	http     *httpapi.Server
	grpc     *grpcapi.Server
	admin    *admin.Server
	metrics  *admin.Server // nil when off
}

// assemble builds a node from its parts; nothing of it runs yet.
func assemble(s Settings, ports *ports, log *slog.Logger) (*process, error) {
	p := &process{settings: s, log: log, ports: ports}
	boot := 1 + rand.Uint64N(1<<63)
	registry := prometheus.NewRegistry()
	p.buckets = bucket.New(bucket.Config{Shards: ring.Partitions, MaxKeys: s.MaxKeys, IdleTTL: s.IdleTTL})
	registerProcess(registry, p.buckets)
	p.pool = peer.NewPool(peer.PoolConfig{ID: s.ID, Boot: boot})

	c := node.Config{
		ID: s.ID, Store: node.Memory(p.buckets), Peers: p.pool, Budget: s.ForwardTimeout,
		Limits: s.Limits, InlinePolicy: s.OnFailure, MaxKeys: s.MaxKeys, Metrics: registry, Logger: log,
	}
	if s.RedisURL != "" {
		var err error
		p.redis, err = redisstore.New(redisstore.Config{URL: s.RedisURL, Timeout: s.ForwardTimeout, IdleTTL: s.IdleTTL})
		if err != nil {
			return nil, err
		}
		c.Redis = node.Guard(p.redis, s.ForwardTimeout)
	}
	if s.Backend == backendRedis {
		c.Store, c.Shared, c.Redis = c.Redis, true, nil
	}
	p.node = node.New(c)
	p.peers = peer.NewServer(peer.ServerConfig{ID: s.ID, Boot: boot, Decider: p.node})
	p.members = members.New(members.Config{
		ID: s.ID, Boot: boot, Cluster: s.Cluster, Fingerprint: ring.Fingerprint(), Bind: s.Gossip, Advertise: s.Advertise,
		PeerPort: ports.peer.Addr().(*net.TCPAddr).Port, Seeds: s.Join, Prober: p.pool, Logger: log, OnView: p.follow,
	})
	who := identity.New(identity.Config{TrustedProxies: s.TrustedProxies, TrustedCallers: s.TrustedCallers, TrustClientID: s.TrustClientID})
	p.http = httpapi.New(httpapi.Config{Limiter: p.node, Identity: who, Ready: p.node.NotReady, Logger: log})
	p.grpc = grpcapi.New(grpcapi.Config{Limiter: p.node, Identity: who, Logger: log})
	p.admin = admin.NewServer(admin.Handler(admin.Config{
		Metrics: registry, Cluster: p.members, Placed: p.node, Connections: p.pool,
	}), log)
	if ports.metrics != nil {
		p.metrics = admin.NewServer(admin.MetricsOnly(registry), log)
	}
	return p, nil
}

// follow hands a new picture of the cluster to those that go by it. The streams come
// first, so that they are being opened when the first check wants one.
func (p *process) follow(v members.View) {
	var others []node.Peer
	for _, m := range v {
		if !m.Self && m.State != members.Dead {
			others = append(others, node.Peer{ID: m.ID, Boot: m.Boot, Addr: m.Peer})
		}
	}
	if err := p.pool.SetPeers(others); err != nil {
		p.log.Warn("a node cannot be dialed", "error", err)
	}
	if v.Self().Cleared {
		p.members.Activate()
	}
	p.node.SetView(v)
	p.grpc.SetReady(p.node.NotReady() == "")
}

// start runs everything: first what other nodes ask, so that this node answers as soon as
// they hear of it.
func (p *process) start(ctx context.Context) error {
	p.buckets.Start()
	p.node.Start()
	p.peers.Start(p.ports.peer)
	p.admin.Start(p.ports.admin)
	if p.metrics != nil {
		p.metrics.Start(p.ports.metrics)
	}
	p.http.Start(p.ports.http)
	p.grpc.Start(p.ports.grpc)
	if err := p.members.Start(ctx); err != nil {
		return fmt.Errorf("--gossip: %w", err)
	}
	return nil
}

// leave tells everybody that this node is going, and goes on answering for the time that
// load balancers need to notice.
func (p *process) leave(drain time.Duration) {
	p.members.Leaving()
	time.Sleep(drain)
}

// close ends everything: first what clients ask, last what other nodes ask.
func (p *process) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var fronts sync.WaitGroup
	for _, f := range []closer{p.http, p.grpc} {
		fronts.Go(func() {
			if err := f.Close(ctx); err != nil {
				p.log.Warn("connections were cut off", "error", err)
			}
		})
	}
	fronts.Wait()
	rest := []closer{p.members, p.pool, p.peers, p.node, p.buckets, p.admin}
	if p.redis != nil {
		rest = append(rest, p.redis)
	}
	if p.metrics != nil {
		rest = append(rest, p.metrics)
	}
	ctx, cancel = context.WithTimeout(context.Background(), patience)
	defer cancel()
	var errs []error
	for _, c := range rest {
		errs = append(errs, c.Close(ctx))
	}
	return errors.Join(errs...)
}

type closer interface{ Close(context.Context) error }
