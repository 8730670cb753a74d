package redisstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tokenring/tokenring/bucket"
)

const (
	maxBatch    = 512 // checks in a pipeline, unless one call has more of them
	connections = 2   // to a server: while one waits for answers the other can send
	maxHops     = 3   // redirections of one check
	retryPause  = 50 * time.Millisecond
)

// A server is one Redis server: a queue of checks and the connections that drain it.
type server struct {
	name    string
	options *redis.Options
	shared  *shared
	cluster *cluster // that it is a node of, or nil

	mu     sync.Mutex // guards all below
	queue  [][]*job   // what belongs together stays together
	idle   []*redis.Client
	closed error // why nothing is taken any more
	// Two failures in a row mean that a new connection did not help either: checks then
	// fail with err until resume.
	failures int
	resume   time.Time
	err      error
}

func newServer(a address, sh *shared) *server {
	s := &server{name: a.name(), options: a.options(sh.timeout), shared: sh}
	// Every connection begins with the script known, for a Redis that is new must not
	// refuse the first checks of a batch and decide the later ones. Where loading is not
	// permitted EVAL has to do.
	s.options.OnConnect = func(ctx context.Context, conn *redis.Conn) error {
		_ = sh.script.Load(ctx, conn).Err()
		return nil
	}
	for range connections {
		s.idle = append(s.idle, redis.NewClient(s.options))
	}
	return s
}

// add queues checks that must be decided in their order.
func (s *server) add(jobs []*job) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed != nil {
		finishAll(jobs, s.closed)
		return
	}
	s.queue = append(s.queue, jobs)
	if n := len(s.idle); n > 0 {
		client := s.idle[n-1]
		s.idle = s.idle[:n-1]
		s.shared.running.Go(func() { s.drain(client) })
	}
}

// close refuses what comes from now on with err; what is queued is still sent.
func (s *server) close(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = err
	for _, client := range s.idle {
		client.Close()
	}
	s.idle = nil
}

// drain sends what is queued, one pipeline after the other, until there is nothing. The
// client is its own until then, so a broken one can be replaced without hurting others.
func (s *server) drain(client *redis.Client) {
	for {
		jobs, err := s.next(client)
		if jobs == nil {
			return
		}
		if err != nil {
			finishAll(jobs, err)
			continue
		}
		if jobs = waiting(jobs); len(jobs) == 0 {
			continue
		}
		err = s.send(client, jobs)
		if err != nil {
			// A client that failed to dial too often would hold back for a second.
			client.Close()
			client = redis.NewClient(s.options)
		}
		s.note(err)
	}
}

// next returns what goes into the next pipeline, with an error if there is no use in
// sending it. When nothing is queued it takes the client back.
func (s *server) next(client *redis.Client) ([]*job, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var jobs []*job
	taken := 0
	for _, group := range s.queue {
		if taken > 0 && len(jobs)+len(group) > maxBatch {
			break
		}
		jobs = append(jobs, group...)
		s.queue[taken] = nil
		taken++
	}
	s.queue = s.queue[taken:]
	switch {
	case taken > 0 && time.Now().Before(s.resume):
		return jobs, s.err
	case taken > 0:
		return jobs, nil
	case s.closed != nil:
		client.Close()
	default:
		s.queue = nil
		s.idle = append(s.idle, client)
	}
	return nil, nil
}

// note keeps count of round trips that failed.
func (s *server) note(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		s.failures = 0
		return
	}
	if s.failures++; s.failures > 1 {
		s.err, s.resume = err, time.Now().Add(retryPause)
	}
}

// failing reports whether the last round trip failed.
func (s *server) failing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failures > 0
}

// send asks Redis and answers the checks. The error is not nil when the connection
// failed.
func (s *server) send(client *redis.Client, jobs []*job) error {
	unknown, err := s.ask(client, jobs, false)
	if unknown = waiting(unknown); err != nil || len(unknown) == 0 {
		finishAll(unknown, err)
		return err
	}
	_, err = s.ask(client, unknown, true)
	return err
}

// ask sends one pipeline and answers the checks, except those that it returns: the ones
// that Redis did not decide because it does not know the script. When load is set the
// first check carries the script along.
func (s *server) ask(client *redis.Client, jobs []*job, load bool) (unknown []*job, broken error) {
	ctx, cancel := context.WithTimeout(context.Background(), s.shared.timeout)
	defer cancel()
	pipe := client.Pipeline()
	replies := make([]*redis.Cmd, len(jobs))
	for i, j := range jobs {
		if j.asking {
			pipe.Do(ctx, "asking")
		}
		if load && i == 0 {
			replies[i] = s.shared.script.Eval(ctx, pipe, []string{j.key}, j.args...)
		} else {
			replies[i] = s.shared.script.EvalSha(ctx, pipe, []string{j.key}, j.args...)
		}
	}
	_, _ = pipe.Exec(ctx) // each reply has its own error

	moved := redirections{}
	for i, j := range jobs {
		err := replies[i].Err()
		_, replied := errors.AsType[redis.Error](err)
		switch {
		case err == nil:
			d, err := decision(replies[i])
			j.finish(bucket.Outcome{Decision: d, Err: err})
			continue
		case !replied:
			broken = fmt.Errorf("ask redis %s: %w", s.name, err)
		case !load && redis.HasErrorPrefix(err, "NOSCRIPT"):
			unknown = append(unknown, j)
			continue
		case s.cluster != nil && moved.add(j, s, err):
			continue
		}
		j.finish(bucket.Outcome{Err: fmt.Errorf("ask redis %s: %w", s.name, err)})
	}
	if s.cluster != nil {
		s.cluster.follow(moved, broken)
	}
	return unknown, broken
}

// waiting drops the checks whose callers have left.
func waiting(jobs []*job) []*job {
	kept := jobs[:0]
	for _, j := range jobs {
		if err := j.call.ctx.Err(); err != nil {
			j.finish(bucket.Outcome{Err: err})
		} else {
			kept = append(kept, j)
		}
	}
	return kept
}

func finishAll(jobs []*job, err error) {
	for _, j := range jobs {
		j.finish(bucket.Outcome{Err: err})
	}
}
