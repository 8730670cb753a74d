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
	"github.com/tokenring/tokenring/node/keeper"
	"github.com/tokenring/tokenring/node/members"
	"github.com/tokenring/tokenring/redisstore"
	"github.com/tokenring/tokenring/ring"
	"github.com/tokenring/tokenring/transport/admin"
	"github.com/tokenring/tokenring/transport/grpcapi"
	"github.com/tokenring/tokenring/transport/httpapi"
	"github.com/tokenring/tokenring/transport/identity"
	"github.com/tokenring/tokenring/transport/peer"
)

const (
	// patience is how long an end waits for what is open before it is cut off.
	patience = 5 * time.Second
	// handingOver is how long a leaving node waits for others to take what it holds.
	handingOver = 10 * time.Second
)

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
	who      decider
	node     *node.Node
	pool     *peer.Pool
	peers    *peer.Server
	members  *members.Members
	http     *httpapi.Server
	grpc     *grpcapi.Server
	admin    *admin.Server
	metrics  *admin.Server // nil when off
}

// A decider knows who decides, and follows what gossip says of the cluster.
type decider interface {
	admin.Ring
	SetView(members.View)
	NotReady() string
	Start()
	Leave(context.Context) error
	Goodbye(context.Context) error
	closer
}

// assemble builds a node from its parts; nothing of it runs yet.
func assemble(s Settings, ports *ports, log *slog.Logger) (*process, error) {
	p := &process{settings: s, log: log, ports: ports}
	boot := 1 + rand.Uint64N(1<<63)
	registry := prometheus.NewRegistry()
	p.buckets = bucket.New(bucket.Config{
		Shards: ring.Partitions, MaxKeys: s.MaxKeys, IdleTTL: s.IdleTTL, Passive: true, MaxGap: keeper.MaxGap,
	})
	registerProcess(registry, p.buckets)
	c := node.Config{
		ID: s.ID, Boot: boot, Store: node.Memory(p.buckets), Budget: s.ForwardTimeout,
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
	pool, peers := peer.PoolConfig{ID: s.ID, Boot: boot}, peer.ServerConfig{ID: s.ID, Boot: boot}
	if s.Backend == backendRedis {
		c.Store, c.Redis = c.Redis, nil
		p.who = &everybody{onState: p.obey}
	} else {
		k := keeper.New(keeper.Config{
			ID: s.ID, Boot: boot, Replicas: s.Replicas, Buckets: p.buckets, OnState: p.obey, Metrics: registry, Logger: log,
		})
		c.Holders, pool.Teller, peers.Hearer, p.who = k, k, k, k
	}
	p.pool = peer.NewPool(pool)
	c.Peers = p.pool
	p.node = node.New(c)
	peers.Decider = p.node
	p.peers = peer.NewServer(peers)
	p.members = members.New(members.Config{
		ID: s.ID, Boot: boot, Cluster: s.Cluster, Fingerprint: ring.Fingerprint(), Bind: s.Gossip, Advertise: s.Advertise,
		PeerPort: ports.peer.Addr().(*net.TCPAddr).Port, Seeds: s.Join, Prober: p.pool, Logger: log, OnView: p.who.SetView,
	})
	p.assembleFronts(registry)
	return p, nil
}

// assembleFronts builds what clients and operators ask.
func (p *process) assembleFronts(registry *prometheus.Registry) {
	s := p.settings
	who := identity.New(identity.Config{TrustedProxies: s.TrustedProxies, TrustedCallers: s.TrustedCallers, TrustClientID: s.TrustClientID})
	p.http = httpapi.New(httpapi.Config{Limiter: p.node, Identity: who, Ready: p.who.NotReady, Logger: p.log})
	p.grpc = grpcapi.New(grpcapi.Config{Limiter: p.node, Identity: who, Logger: p.log})
	p.admin = admin.NewServer(admin.Handler(admin.Config{
		Metrics: registry, Cluster: p.members, Ring: p.who, Connections: p.pool,
	}), p.log)
	if p.ports.metrics != nil {
		p.metrics = admin.NewServer(admin.MetricsOnly(registry), p.log)
	}
}

// obey follows what was found out about the cluster. The streams come first, so that they
// are being opened when the first check wants one.
func (p *process) obey(s keeper.State) {
	var others []node.Peer
	for _, m := range s.Peers {
		if m.Addr != "" {
			others = append(others, node.Peer{ID: m.ID, Boot: m.Boot, Addr: m.Addr})
		}
	}
	if err := p.pool.SetPeers(others); err != nil {
		p.log.Warn("a node cannot be dialed", "error", err)
	}
	p.node.SetPeers(others, s.Nodes)
	if s.Active {
		p.members.Activate()
	}
	p.grpc.SetReady(s.NotReady == "")
}

// start runs everything: first what other nodes ask, so that this node answers as soon as
// they hear of it.
func (p *process) start(ctx context.Context) error {
	p.buckets.Start()
	p.node.Start()
	p.who.Start()
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

// leave hands over what this node holds, and then goes on answering for the time that load
// balancers need to notice.
func (p *process) leave(drain time.Duration) {
	p.members.Leaving()
	ctx, cancel := context.WithTimeout(context.Background(), handingOver)
	defer cancel()
	if err := p.who.Leave(ctx); err != nil {
		p.log.Warn("leaving before everything was handed over", "after", handingOver)
	}
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
	if err := p.who.Goodbye(ctx); err != nil {
		p.log.Warn("goodbye was not heard by all", "error", err)
	}
	// The peer port is closed late: a node whose port is open may still decide.
	rest := []closer{p.members, p.pool, p.peers, p.who, p.node, p.buckets, p.admin}
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
