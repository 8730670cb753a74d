package redisstore

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tokenring/tokenring/bucket"
	"github.com/tokenring/tokenring/test/redistest"
	"github.com/tokenring/tokenring/test/wait"
)

func TestRestart(t *testing.T) {
	rs := redistest.Start(t)
	s := newStoreWith(t, Config{URL: rs.URL(), Timeout: time.Second})
	take := bucket.Take{Name: "api", Key: "k", Limit: limit(t, 1, time.Hour, 5), Cost: 1}
	mustTake(t, s, take)
	rs.Kill()
	sv := serverOf(t, s, take)
	wait.For(t, patience, "20 failed attempts in a row", func() bool {
		if o := takeOne(t.Context(), s, take); o.Err == nil {
			t.Error("decided without Redis")
		}
		sv.mu.Lock()
		defer sv.mu.Unlock()
		return sv.failures >= 20
	})
	rs.Restart()
	wait.For(t, time.Second, "Redis to be used again", func() bool {
		return takeOne(t.Context(), s, take).Err == nil
	})
}

func TestUnreachableFromTheStart(t *testing.T) {
	rs := redistest.Start(t)
	rs.Kill()
	s := newStoreWith(t, Config{URL: rs.URL(), Timeout: time.Second})
	take := bucket.Take{Name: "api", Key: "k", Limit: limit(t, 1, time.Hour, 5), Cost: 1}
	for range 100 {
		o := takeOne(t.Context(), s, take)
		if o.Err == nil || !strings.Contains(o.Err.Error(), rs.Addr()) {
			t.Fatalf("got %v, want an error that names %s", o.Err, rs.Addr())
		}
	}
	rs.Restart()
	wait.For(t, time.Second, "Redis to be used", func() bool {
		return takeOne(t.Context(), s, take).Err == nil
	})
}

// waitForIdle waits until so many connections are idle and nothing is queued.
func waitForIdle(t *testing.T, sv *server, n int) {
	t.Helper()
	wait.For(t, patience, "checks to be on their way", func() bool {
		sv.mu.Lock()
		defer sv.mu.Unlock()
		return len(sv.idle) == n && len(sv.queue) == 0
	})
}

// While Redis is stopped callers leave when their contexts end, and what was not yet
// sent by then is never charged.
func TestContextEndsWhileRedisIsStopped(t *testing.T) {
	rs := redistest.Start(t)
	s := newStore(t, rs.URL())
	l := limit(t, 1, time.Hour, 100)
	sent := bucket.Take{Name: "api", Key: "sent", Limit: l, Cost: 1}
	mustTake(t, s, sent)
	sv := serverOf(t, s, sent)
	waitForIdle(t, sv, connections)
	rs.Pause()
	var senders sync.WaitGroup
	for i := range connections { // they keep every connection busy
		senders.Go(func() { wantDecided(t, s, sent) })
		waitForIdle(t, sv, connections-1-i)
	}
	queued := bucket.Take{Name: "api", Key: "queued", Limit: l, Cost: 1}
	for range 10 {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		if o := takeOne(ctx, s, queued); !errors.Is(o.Err, context.DeadlineExceeded) {
			t.Errorf("got %+v, want the deadline's error", o)
		}
		cancel()
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if o := takeOne(ended, s, queued); !errors.Is(o.Err, context.Canceled) {
		t.Errorf("got %+v, want the context's error", o)
	}
	rs.Resume()
	senders.Wait()
	queued.Cost = 0
	if d := mustTake(t, s, queued); d.Remaining != 100 {
		t.Errorf("got %+v, want a bucket that was not charged", d)
	}
}

// Without a deadline of the caller Timeout is the bound.
func TestStoppedLongerThanTheTimeout(t *testing.T) {
	rs := redistest.Start(t)
	s := newStoreWith(t, Config{URL: rs.URL(), Timeout: 50 * time.Millisecond})
	take := bucket.Take{Name: "api", Key: "k", Limit: limit(t, 1, time.Hour, 5), Cost: 1}
	rs.Pause()
	if o := takeOne(t.Context(), s, take); o.Err == nil {
		t.Errorf("got %+v, want an error", o)
	}
	rs.Resume()
	wait.For(t, patience, "Redis to be used again", func() bool {
		return takeOne(t.Context(), s, take).Err == nil
	})
}

func TestClose(t *testing.T) {
	rs := redistest.Start(t)
	s := newStore(t, rs.URL())
	take := bucket.Take{Name: "api", Key: "k", Limit: limit(t, 1, time.Hour, 5), Cost: 1}
	sv := serverOf(t, s, take)
	rs.Pause()
	var wg sync.WaitGroup
	wg.Go(func() { wantDecided(t, s, take) })
	waitForIdle(t, sv, connections-1)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := s.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("close while a check is open: got %v, want the deadline's error", err)
	}
	if o := takeOne(t.Context(), s, take); !errors.Is(o.Err, ErrClosed) {
		t.Errorf("after close: got %v, want ErrClosed", o.Err)
	}
	rs.Resume()
	wg.Wait()
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
