package redisstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/redis/go-redis/v9"
)

// shards are servers among which the buckets are divided for good: whether a server
// answers does not matter.
type shards struct {
	servers []*server
	seeds   []uint64 // of each server's hash, made from its name alone
}

func newShards(addrs []address, sh *shared) *shards {
	s := &shards{}
	for _, a := range addrs {
		s.servers = append(s.servers, newServer(a, sh))
		s.seeds = append(s.seeds, xxhash.Sum64String(a.name()))
	}
	return s
}

// server returns the one whose hash of the key is highest, so that a server more or less
// moves no more buckets than it must.
func (s *shards) server(_ context.Context, key string) (*server, error) {
	var best *server
	var highest uint64
	var d xxhash.Digest
	for i, sv := range s.servers {
		d.ResetWithSeed(s.seeds[i])
		_, _ = d.WriteString(key)
		if h := d.Sum64(); best == nil || h > highest {
			best, highest = sv, h
		}
	}
	return best, nil
}

func (s *shards) close() {
	for _, sv := range s.servers {
		sv.close(ErrClosed)
	}
}

var errNodeGone = errors.New("redis cluster node does not answer")

// cluster finds the nodes of a Redis Cluster. go-redis's client knows the slots and does
// nothing else.
type cluster struct {
	address address // of each node, but for the host
	seeds   []string
	shared  *shared

	mu      sync.Mutex // guards all below
	slots   *redis.ClusterClient
	servers map[string]*server // by address
	closed  bool
	// As long as the slots were never loaded, checks fail with err until resume.
	resume time.Time
	err    error
}

func newCluster(u *clusterURL, sh *shared) *cluster {
	c := &cluster{address: u.address, seeds: u.hosts, shared: sh, servers: map[string]*server{}}
	c.slots = c.newSlots()
	return c
}

func (c *cluster) newSlots() *redis.ClusterClient {
	o := c.address.options(c.shared.timeout)
	return redis.NewClusterClient(&redis.ClusterOptions{
		Addrs:                    c.seeds,
		Protocol:                 o.Protocol,
		Username:                 o.Username,
		Password:                 o.Password,
		TLSConfig:                o.TLSConfig,
		MaxRedirects:             o.MaxRetries,
		MaxRetries:               o.MaxRetries,
		DialerRetries:            o.DialerRetries,
		DialTimeout:              o.DialTimeout,
		ReadTimeout:              o.ReadTimeout,
		WriteTimeout:             o.WriteTimeout,
		ContextTimeoutEnabled:    o.ContextTimeoutEnabled,
		PoolSize:                 o.PoolSize,
		PipelinePoolSize:         o.PipelinePoolSize,
		DisableIdentity:          o.DisableIdentity,
		MaintNotificationsConfig: o.MaintNotificationsConfig,
	})
}

func (c *cluster) server(ctx context.Context, key string) (*server, error) {
	slots, err := c.loader()
	if err != nil {
		return nil, err
	}
	node, err := slots.MasterForKey(ctx, key)
	if err != nil {
		err = fmt.Errorf("find redis cluster node: %w", err)
		if ctx.Err() == nil {
			c.notLoaded(slots, err)
		}
		return nil, err
	}
	return c.at(node.Options().Addr)
}

func (c *cluster) loader() (*redis.ClusterClient, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return nil, ErrClosed
	case time.Now().Before(c.resume):
		return nil, c.err
	}
	return c.slots, nil
}

// notLoaded replaces a client that could not load the slots: one that failed to dial too
// often would hold back for a second.
func (c *cluster) notLoaded(slots *redis.ClusterClient, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.slots != slots {
		return
	}
	slots.Close()
	c.slots = c.newSlots()
	c.err, c.resume = err, time.Now().Add(retryPause)
}

// at returns the node at an address. For a new one those are dropped that do not answer:
// if they are still part of the cluster they come back with the next check.
func (c *cluster) at(addr string) (*server, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if sv := c.servers[addr]; sv != nil {
		return sv, nil
	}
	if c.closed {
		return nil, ErrClosed
	}
	for old, sv := range c.servers {
		if sv.failing() {
			sv.close(errNodeGone)
			delete(c.servers, old)
		}
	}
	a := c.address
	a.addr = addr
	sv := newServer(a, c.shared)
	sv.cluster = c
	c.servers[addr] = sv
	return sv, nil
}

func (c *cluster) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	c.closed = true
	c.slots.Close()
	for _, sv := range c.servers {
		sv.close(ErrClosed)
	}
}

// redirections are checks that a node did not decide since another one holds their
// slot, by the address of that one.
type redirections map[string][]*job

// add reports whether err redirects the check, and notes where to.
func (r redirections) add(j *job, from *server, err error) bool {
	addr, moved := redis.IsMovedError(err)
	if !moved {
		if addr, j.asking = redis.IsAskError(err); !j.asking {
			return false
		}
	}
	if j.hops == maxHops {
		return false
	}
	j.hops++
	j.asking = !moved
	// A node that does not know its own name leaves the host out.
	if host, port, err := net.SplitHostPort(addr); err == nil && host == "" {
		host, _, _ = net.SplitHostPort(from.options.Addr)
		addr = net.JoinHostPort(host, port)
	}
	r[addr] = append(r[addr], j)
	return true
}

// follow sends redirected checks on. They and broken connections mean that the slots
// may lie elsewhere by now.
func (c *cluster) follow(r redirections, broken error) {
	if len(r) == 0 && broken == nil {
		return
	}
	if slots, err := c.loader(); err == nil {
		slots.ReloadState(context.Background())
	}
	for addr, jobs := range r {
		sv, err := c.at(addr)
		if err != nil {
			finishAll(jobs, err)
			continue
		}
		sv.add(jobs)
	}
}
