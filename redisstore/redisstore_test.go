package redisstore

import (
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
		// Redis counts from a moment rounded down to its millisecond.
		if got <= tt.want-time.Minute || got > tt.want+2*time.Millisecond {
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

// Where scripts may not be loaded each check that Redis does not know the script for
// carries it along.
func TestLoadingScriptsIsNotPermitted(t *testing.T) {
	rs := redistest.Start(t)
	if err := rs.Client().Do(t.Context(), "ACL", "SETUSER", "default", "-script").Err(); err != nil {
		t.Fatal(err)
	}
	s := newStore(t, rs.URL())
	take := bucket.Take{Name: "api", Key: "k", Limit: limit(t, 0, 0, 5), Cost: 1}
	for left := int64(4); left >= 0; left-- {
		if d := mustTake(t, s, take); d.Remaining != left {
			t.Fatalf("got %+v, want %d remaining", d, left)
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
