package redisstore

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tokenring/tokenring/bucket"
	"github.com/tokenring/tokenring/test/redistest"
)

// patience is how long what must happen may take on a machine that is busy.
const patience = 20 * time.Second

// newStore returns a store that waits for Redis as long as a busy machine may need.
func newStore(tb testing.TB, url string) *Store {
	tb.Helper()
	return newStoreWith(tb, Config{URL: url, Timeout: patience})
}

func newStoreWith(tb testing.TB, c Config) *Store {
	tb.Helper()
	s, err := New(c)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			tb.Errorf("close store: %v", err)
		}
	})
	return s
}

func limit(tb testing.TB, tokens int64, per time.Duration, burst int64) bucket.Limit {
	tb.Helper()
	l, err := bucket.NewLimit(tokens, per, burst)
	if err != nil {
		tb.Fatal(err)
	}
	return l
}

// takeOne asks for one check.
func takeOne(ctx context.Context, s *Store, t bucket.Take) bucket.Outcome {
	out := make([]bucket.Outcome, 1)
	s.Take(ctx, []bucket.Take{t}, out)
	return out[0]
}

// mustTake asks for one check that must be decided.
func mustTake(tb testing.TB, s *Store, t bucket.Take) bucket.Decision {
	tb.Helper()
	o := takeOne(tb.Context(), s, t)
	if o.Err != nil {
		tb.Fatalf("take %q: %v", t.Key, o.Err)
	}
	return o.Decision
}

// wantDecided is mustTake outside of the test's own goroutine.
func wantDecided(tb testing.TB, s *Store, t bucket.Take) {
	tb.Helper()
	if o := takeOne(tb.Context(), s, t); o.Err != nil {
		tb.Errorf("take %q: %v", t.Key, o.Err)
	}
}

// freeze gives the store a script whose clock stands still, an hour ahead of Redis's own
// so that keys do not expire by that. Time then passes by age alone.
func freeze(tb testing.TB, s *Store) {
	tb.Helper()
	const clock = "redis.call('TIME')"
	if strings.Count(source, clock) != 1 {
		tb.Fatalf("the script does not read %s once", clock)
	}
	still := fmt.Sprintf("{'%d', '123456'}", time.Now().Add(time.Hour).Unix())
	s.shared.script = redis.NewScript(strings.Replace(source, clock, still, 1))
}

var ageScript = redis.NewScript(`
if redis.call('EXISTS', KEYS[1]) == 1 then
  redis.call('HINCRBY', KEYS[1], 'at', 0 - ARGV[1])
  redis.call('PEXPIRE', KEYS[1], redis.call('PTTL', KEYS[1]) - math.floor(ARGV[1] / 1000))
end`)

// age lets time pass for a bucket, by moving what is stored of it into the past. A bucket
// that is not stored is full, whatever the time.
func age(tb testing.TB, c redis.Scripter, t bucket.Take, by time.Duration) {
	tb.Helper()
	err := ageScript.Run(tb.Context(), c, []string{storeKey(&t)}, by.Microseconds()).Err()
	if err != nil && err != redis.Nil {
		tb.Fatalf("age bucket: %v", err)
	}
}

// serverOf returns the server that a bucket is on.
func serverOf(tb testing.TB, s *Store, t bucket.Take) *server {
	tb.Helper()
	sv, err := s.router.server(tb.Context(), storeKey(&t))
	if err != nil {
		tb.Fatal(err)
	}
	return sv
}

// on returns a check of a bucket that lies on the given server.
func on(tb testing.TB, s *Store, server *redistest.Server, t bucket.Take) bucket.Take {
	tb.Helper()
	for i := range 10_000 {
		t.Key = fmt.Sprintf("key-%d", i)
		if serverOf(tb, s, t).options.Addr == server.Addr() {
			return t
		}
	}
	tb.Fatalf("no key is on %s", server.Addr())
	return t
}
