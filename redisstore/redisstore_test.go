package redisstore

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tokenring/tokenring/bucket"
	"github.com/tokenring/tokenring/test/redistest"
	"github.com/tokenring/tokenring/test/wait"
)

// spend takes 100 times at once from one bucket, alternating between stores, and returns
// how many were allowed.
func spend(t *testing.T, stores []*Store, take bucket.Take) int {
	var allowed atomic.Int64
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			o := takeOne(t.Context(), stores[i%len(stores)], take)
			if o.Err != nil {
				t.Error(o.Err)
			}
			if o.Allowed {
				allowed.Add(1)
			}
		})
	}
	wg.Wait()
	return int(allowed.Load())
}

// exactly20 spends new buckets of 20 that do not refill, again and again.
func exactly20(t *testing.T, url string) {
	stores := []*Store{newStore(t, url), newStore(t, url), newStore(t, url)}
	for i := range 100 {
		take := bucket.Take{Name: "api", Key: fmt.Sprintf("key-%d", i), Limit: limit(t, 0, 0, 20), Cost: 1}
		if got := spend(t, stores, take); got != 20 {
			t.Fatalf("round %d: allowed %d of 100, want 20", i, got)
		}
	}
}

func TestExactlyTheBurstAtOnce(t *testing.T) {
	exactly20(t, redistest.Start(t).URL())
}

func TestBatchKeepsItsOrder(t *testing.T) {
	s := newStore(t, redistest.Start(t).URL())
	l := limit(t, 0, 0, 1000)
	var takes []bucket.Take
	for i := range 2000 { // more than go into one pipeline otherwise
		takes = append(takes, bucket.Take{Name: "api", Key: []string{"a", "b"}[i%2], Limit: l, Cost: 1})
	}
	out := make([]bucket.Outcome, len(takes))
	var wg sync.WaitGroup
	for range 8 { // others, so that there are pipelines to be spread over
		wg.Go(func() { takeOne(t.Context(), s, bucket.Take{Name: "api", Key: "c", Limit: l, Cost: 1}) })
	}
	s.Take(t.Context(), takes, out)
	wg.Wait()
	for i, o := range out {
		if want := int64(999 - i/2); o.Err != nil || !o.Allowed || o.Remaining != want {
			t.Fatalf("check %d: got %+v, want %d remaining", i, o, want)
		}
	}
}

func TestBatchWithWhatIsWrong(t *testing.T) {
	s := newStore(t, redistest.Start(t).URL())
	good := bucket.Take{Name: "api", Key: "k", Limit: limit(t, 1, time.Hour, 5), Cost: 1}
	bad := good
	bad.Limit = limit(t, 1, 24*time.Hour, 26_500)
	out := make([]bucket.Outcome, 3)
	s.Take(t.Context(), []bucket.Take{good, bad, good}, out)
	if out[0].Err != nil || out[2].Err != nil || out[2].Remaining != 3 {
		t.Errorf("got %+v and %+v, want both decided", out[0], out[2])
	}
	if !errors.Is(out[1].Err, bucket.ErrLimit) {
		t.Errorf("got error %v, want one that wraps ErrLimit", out[1].Err)
	}
	s.Take(t.Context(), nil, nil)
}

// The names and keys of buckets are any bytes, and no two buckets are one.
func TestKeysOfAnyBytes(t *testing.T) {
	s := newStore(t, redistest.Start(t).URL())
	l := limit(t, 0, 0, 1)
	names := [][2]string{
		{"a", "b"}, {"a", "b\x00"}, {"a", "\x00b"}, {"ab", ""}, {"a", "\xff\xfe"}, {"a", "\r\nDEL"},
		{"a", "{b}"}, {"a", "{c}"}, {"a", "}{"}, {"a", strings.Repeat("x", bucket.MaxKeyBytes)}, {"a", " "},
	}
	for _, n := range names {
		take := bucket.Take{Name: n[0], Key: n[1], Limit: l, Cost: 1}
		if !mustTake(t, s, take).Allowed {
			t.Errorf("%q was not new", n)
		}
		if mustTake(t, s, take).Allowed {
			t.Errorf("%q was not kept", n)
		}
	}
}

func TestExpiry(t *testing.T) {
	rs := redistest.Start(t)
	client := rs.Client()
	s := newStoreWith(t, Config{URL: rs.URL(), Timeout: patience, IdleTTL: 10 * time.Minute})
	tests := []struct {
		name  string
		limit bucket.Limit
		want  time.Duration
	}{
		{"when full again", limit(t, 1, time.Hour, 5), time.Hour},
		{"after silence", limit(t, 0, 0, 5), 10 * time.Minute},
	}
	for _, tt := range tests {
		take := bucket.Take{Name: "api", Key: tt.name, Limit: tt.limit, Cost: 1}
		mustTake(t, s, take)
		got := client.PTTL(t.Context(), storeKey(&take)).Val()
		if got <= tt.want-time.Minute || got > tt.want {
			t.Errorf("%s: key expires in %v, want %v", tt.name, got, tt.want)
		}
		take.Cost = -1
		mustTake(t, s, take)
		if n := client.Exists(t.Context(), storeKey(&take)).Val(); n != 0 {
			t.Errorf("%s: the bucket is full and still stored", tt.name)
		}
	}
	for _, cost := range []int64{0, -3, 6} {
		take := bucket.Take{Name: "api", Key: "untouched", Limit: limit(t, 1, time.Hour, 5), Cost: cost}
		mustTake(t, s, take)
		if n := client.Exists(t.Context(), storeKey(&take)).Val(); n != 0 {
			t.Errorf("cost %d: a full bucket is stored", cost)
		}
	}
}

// With Redis's own clock: what was stored a while ago has refilled by now.
func TestRefillsOnRedisClock(t *testing.T) {
	rs := redistest.Start(t)
	client := rs.Client()
	s := newStore(t, rs.URL())
	take := bucket.Take{Name: "api", Key: "k", Limit: limit(t, 1, time.Hour, 5), Cost: 5}
	mustTake(t, s, take)
	take.Cost = 1
	d := mustTake(t, s, take)
	if d.Allowed || d.RetryAfter > time.Hour || d.RetryAfter < time.Hour-patience {
		t.Errorf("got %+v, want a wait of an hour", d)
	}
	age(t, client, take, 2*time.Hour)
	if d := mustTake(t, s, take); !d.Allowed || d.Remaining != 1 {
		t.Errorf("after two hours: got %+v, want one token left of two", d)
	}
	age(t, client, take, 5*time.Hour)
	if d := mustTake(t, s, take); d.Remaining != 4 {
		t.Errorf("after five hours: got %+v, want a full bucket less one", d)
	}
}

func TestClockGoingBackChangesNothing(t *testing.T) {
	rs := redistest.Start(t)
	client := rs.Client()
	s := newStore(t, rs.URL())
	freeze(t, s)
	take := bucket.Take{Name: "api", Key: "k", Limit: limit(t, 1, time.Minute, 5), Cost: 3}
	want := mustTake(t, s, take)
	take.Cost = 0
	age(t, client, take, -30*time.Minute) // what is stored lies in the future
	if got := mustTake(t, s, take); got != want {
		t.Errorf("got %+v, want %+v as before", got, want)
	}
	age(t, client, take, 30*time.Minute) // the clock has caught up
	if got := mustTake(t, s, take); got != want {
		t.Errorf("got %+v, want %+v as before", got, want)
	}
	age(t, client, take, time.Minute)
	if got := mustTake(t, s, take); got.Remaining != 3 {
		t.Errorf("a minute later: got %+v, want one token more", got)
	}
}

func TestScriptFlush(t *testing.T) {
	rs := redistest.Start(t)
	client := rs.Client()
	s := newStore(t, rs.URL())
	take := bucket.Take{Name: "api", Key: "k", Limit: limit(t, 0, 0, 100), Cost: 1}
	takes := []bucket.Take{take, take, take}
	for left := int64(100); left > 80; left -= 4 {
		if err := client.ScriptFlush(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		if d := mustTake(t, s, take); d.Remaining != left-1 {
			t.Fatalf("got %+v, want %d remaining: charged once", d, left-1)
		}
		if err := client.ScriptFlush(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		out := make([]bucket.Outcome, len(takes))
		s.Take(t.Context(), takes, out)
		for i, o := range out {
			if want := left - 2 - int64(i); o.Err != nil || o.Remaining != want {
				t.Fatalf("check %d: got %+v, want %d remaining", i, o, want)
			}
		}
	}
}

func TestForeignKey(t *testing.T) {
	rs := redistest.Start(t)
	s := newStore(t, rs.URL())
	take := bucket.Take{Name: "api", Key: "k", Limit: limit(t, 1, time.Hour, 5), Cost: 1}
	if err := rs.Client().Set(t.Context(), storeKey(&take), "x", 0).Err(); err != nil {
		t.Fatal(err)
	}
	o := takeOne(t.Context(), s, take)
	if !redis.HasErrorPrefix(o.Err, "WRONGTYPE") || o.Allowed {
		t.Errorf("got %+v, want WRONGTYPE", o)
	}
	take.Key = "other"
	mustTake(t, s, take)
}

func TestUnixSocketPasswordAndDatabase(t *testing.T) {
	path := filepath.Join(t.TempDir(), "r.sock")
	rs := redistest.Start(t, "--unixsocket", path, "--requirepass", "s3cret@:/")
	take := bucket.Take{Name: "api", Key: "k", Limit: limit(t, 1, time.Hour, 5), Cost: 1}
	urls := []string{
		"unix://:s3cret%40%3A%2F@" + path + "?db=3",
		"redis://default:s3cret%40%3A%2F@" + rs.Addr() + "/3",
	}
	for i, url := range urls {
		if d := mustTake(t, newStore(t, url), take); d.Remaining != 4-int64(i) {
			t.Errorf("%s: got %+v, want the same bucket", url, d)
		}
	}
	o := takeOne(t.Context(), newStore(t, "redis://:wr0ng@"+rs.Addr()), take)
	if o.Err == nil || strings.Contains(o.Err.Error(), "wr0ng") {
		t.Errorf("wrong password: got %v, want an error without the password", o.Err)
	}
}

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

// While Redis is stopped callers leave when their contexts end, and what was not yet
// sent by then is never charged.
func TestContextEndsWhileRedisIsStopped(t *testing.T) {
	rs := redistest.Start(t)
	s := newStore(t, rs.URL())
	l := limit(t, 1, time.Hour, 100)
	sent := bucket.Take{Name: "api", Key: "sent", Limit: l, Cost: 1}
	mustTake(t, s, sent)
	rs.Pause()
	var senders sync.WaitGroup
	for range connections { // they keep every connection busy
		senders.Go(func() { wantDecided(t, s, sent) })
	}
	sv := serverOf(t, s, sent)
	wait.For(t, patience, "all connections to be busy", func() bool {
		sv.mu.Lock()
		defer sv.mu.Unlock()
		return len(sv.idle) == 0 && len(sv.queue) == 0
	})
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

// A batch is left with what was decided by then.
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

// Callers who come at once share round trips.
func TestSharesRoundTrips(t *testing.T) {
	rs := redistest.Start(t)
	client := rs.Client()
	s := newStore(t, rs.URL())
	take := bucket.Take{Name: "api", Key: "k", Limit: limit(t, 0, 0, 10_000), Cost: 1}
	const callers, each = 64, 50
	before := reads(t, client)
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for range each {
				wantDecided(t, s, take)
			}
		})
	}
	wg.Wait()
	if n := reads(t, client) - before; n > callers*each/4 {
		t.Errorf("%d checks took %d round trips", callers*each, n)
	}
	if d := mustTake(t, s, take); d.Remaining != 10_000-callers*each-1 {
		t.Errorf("got %+v: not every check was charged once", d)
	}
}

// reads returns how often Redis has read from a connection.
func reads(t *testing.T, c *redis.Client) int {
	t.Helper()
	info, err := c.Info(t.Context(), "stats").Result()
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(info, "total_reads_processed:")
	var n int
	if _, err := fmt.Sscan(after, &n); err != nil {
		t.Fatalf("no count of reads: %v", err)
	}
	return n
}

func TestClose(t *testing.T) {
	rs := redistest.Start(t)
	s := newStore(t, rs.URL())
	take := bucket.Take{Name: "api", Key: "k", Limit: limit(t, 1, time.Hour, 5), Cost: 1}
	sv := serverOf(t, s, take)
	rs.Pause()
	var wg sync.WaitGroup
	wg.Go(func() { wantDecided(t, s, take) })
	wait.For(t, patience, "the check to be on its way", func() bool {
		sv.mu.Lock()
		defer sv.mu.Unlock()
		return len(sv.idle) < connections
	})
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
