// Package redisstore keeps the token buckets of package bucket in Redis: the same
// decisions from the same rules, made by one Lua script on Redis's own clock.
//
//	Take ── key ──> server: queue ──> one pipeline of up to 512 checks ──> take.lua
//
// A check is one EVALSHA of the script, which reads the bucket, refills it, decides,
// charges and sets the expiry: one round trip, and nothing can come between. Each new
// connection loads the script first. EVAL follows only when Redis says that it does not
// know the script, which is to say that it did nothing. Nothing else is ever sent twice,
// since a check that was sent may have been charged: go-redis's retries are off, and an
// error is the caller's to deal with.
//
// Checks share round trips without a timer. Each server has a queue and a few
// connections; whoever finds a connection idle sends at once, and what comes in meanwhile
// goes out together in the next pipeline. The checks of one call for one server are never
// spread over two pipelines, so they are decided in their order.
//
// # Servers
//
// One URL is one server. Several are shards: a bucket belongs to one of them by
// rendezvous hashing over their addresses, whatever their order in the list. Redis Cluster
// is asked where its slots lie through go-redis's cluster client; redirections (MOVED,
// ASK) are followed here. Each server is sent to by its own connections, so that one
// which is slow or dead holds up nobody but its own buckets. go-redis's ring and cluster
// clients would do otherwise: the ring takes a shard that does not answer out and gives
// its keys to the others, which grants every one of its buckets a second time, both wait
// for the slowest server of a pipeline, and the cluster client sends again what timed out.
//
// A server that cannot be reached is tried again every 50 ms, and checks fail at once in
// between.
//
// # Keys
//
// A bucket is the hash "tokenring{}:" + limit + "\0" + key, any bytes; take.lua names its
// fields. The empty braces make Redis Cluster hash the whole key: a client that puts
// braces into its own key cannot choose its slot. Two deployments must not share a
// database.
//
// # Units
//
// The script counts as package bucket does, but in microseconds: a rate of n tokens in d
// microseconds, reduced by their greatest common divisor, makes one token d units and the
// refill n units a microsecond. Lua's numbers are doubles, exact for integers up to 2^53, so
// a burst of more than 2^51 units and a refill as large are refused: see Supports.
// Durations are rounded up to whole microseconds. A new version of a limit may round the
// deficit up by what comes back in less than one.
//
// A full bucket is not stored. A bucket expires when it is full again, rounded up to
// a millisecond; one that never refills after a time of silence. Redis's clock is a wall
// clock: when it is set back buckets wait until it has caught up, and when it is set
// forward they refill. The oldest Redis that will do is 5.
package redisstore

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"

	"github.com/tokenring/tokenring/bucket"
)

// ErrClosed is what a check hears from a store that was closed.
var ErrClosed = errors.New("redis store is closed")

// errOpen marks an outcome that nobody has written yet.
var errOpen = errors.New("not answered")

// Config says how a Store is built. Zero values stand for the defaults.
type Config struct {
	// URL names the servers: redis://, rediss:// or unix://, several of them
	// comma-separated for shards, or redis+cluster:// with the addresses of a cluster.
	URL     string
	Timeout time.Duration // of a dial and of a round trip; 100 ms
	IdleTTL time.Duration // silence after which a bucket that never refills is dropped; 1 h
}

func (c Config) withDefaults() Config {
	if c.Timeout == 0 {
		c.Timeout = 100 * time.Millisecond
	}
	if c.IdleTTL == 0 {
		c.IdleTTL = time.Hour
	}
	return c
}

// router finds the server that holds a bucket.
type router interface {
	server(ctx context.Context, key string) (*server, error)
	close()
}

// Store decides checks in Redis. All its methods may be called at once.
type Store struct {
	router router
	idle   int64 // milliseconds
	shared *shared
}

// shared is what all servers of a store have in common.
type shared struct {
	timeout time.Duration
	script  *redis.Script
	running sync.WaitGroup // all that sends
}

// New returns a store for the servers of the URL. It connects to nothing and there is
// nothing to start: connections are made when there are checks to send. What go-redis
// would write to standard error is switched off for the process, since every error
// reaches a caller.
func New(c Config) (*Store, error) {
	c = c.withDefaults()
	addrs, err := parseURL(c.URL)
	if err != nil {
		return nil, err
	}
	logging.Disable()
	s := &Store{
		idle:   max(1, c.IdleTTL.Milliseconds()),
		shared: &shared{timeout: c.Timeout, script: redis.NewScript(source)},
	}
	if addrs.cluster != nil {
		s.router = newCluster(addrs.cluster, s.shared)
	} else {
		s.router = newShards(addrs.servers, s.shared)
	}
	return s, nil
}

// Close lets the checks that wait be answered, closes the connections and waits for that
// as long as ctx allows. It may be called twice.
func (s *Store) Close(ctx context.Context) error {
	s.router.close()
	done := make(chan struct{})
	go func() {
		s.shared.running.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Take decides takes[i] into out[i], which must be as long. It returns when all are
// decided or ctx is done. A check whose ctx is done before it was sent is not charged.
func (s *Store) Take(ctx context.Context, takes []bucket.Take, out []bucket.Outcome) {
	c := &call{ctx: ctx, out: out, open: len(takes), done: make(chan struct{})}
	for i := range out[:len(takes)] {
		out[i] = bucket.Outcome{Err: errOpen}
	}
	if len(takes) == 0 {
		return
	}
	groups := make(map[*server][]*job, 1)
	for i := range takes {
		j := &job{call: c, index: i, key: storeKey(&takes[i])}
		if sv, err := s.prepare(j, &takes[i]); err != nil {
			j.finish(bucket.Outcome{Err: err})
		} else {
			groups[sv] = append(groups[sv], j)
		}
	}
	for sv, jobs := range groups {
		sv.add(jobs)
	}
	select {
	case <-c.done:
	case <-ctx.Done():
		c.leave()
	}
}

func (s *Store) prepare(j *job, t *bucket.Take) (*server, error) {
	if err := j.call.ctx.Err(); err != nil {
		return nil, err
	}
	var err error
	if j.args, err = scriptArgs(t, s.idle); err != nil {
		return nil, err
	}
	return s.router.server(j.call.ctx, j.key)
}

// A call is one Take. Its caller may leave before every check was answered, and from
// then on nobody writes to out.
type call struct {
	ctx  context.Context // of the one call that this is
	done chan struct{}   // closed when no check is open

	mu   sync.Mutex // guards all below
	out  []bucket.Outcome
	open int
	left bool
}

// leave answers the checks that are still open with the error of the call's context.
func (c *call) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.left = true
	for i := range c.out {
		if c.out[i].Err == errOpen {
			c.out[i].Err = c.ctx.Err()
		}
	}
}

// A job is one check on its way.
type job struct {
	call   *call
	index  int // in the call
	key    string
	args   []any // of the script
	asking bool  // sent to a cluster's node that is still importing the slot
	hops   int   // redirections followed
}

// finish answers the check, once.
func (j *job) finish(o bucket.Outcome) {
	c := j.call
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.left {
		c.out[j.index] = o
	}
	if c.open--; c.open == 0 {
		close(c.done)
	}
}
