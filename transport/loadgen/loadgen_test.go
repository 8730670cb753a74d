package loadgen

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// scripted answers after a time, one call like the next.
type scripted struct {
	takes   time.Duration
	allowed int // of the keys of a call; the others are denied
	err     error
	calls   int
	asked   map[string]int
}

func (s *scripted) Ask(ctx context.Context, keys []string, t *Tally) error {
	select {
	case <-time.After(s.takes): // in the bubble
	case <-ctx.Done():
		return ctx.Err()
	}
	s.calls++
	for i, key := range keys {
		s.asked[key]++
		if s.err == nil {
			t.Count(i < s.allowed, false)
		}
	}
	return s.err
}

func TestRunCountsWhatEndsInTheTime(t *testing.T) {
	refused := errors.New("refused")
	cases := []struct {
		name    string
		asker   scripted
		config  Config
		want    Tally
		calls   int64
		rate    float64
		latency time.Duration
		err     string
	}{
		{"one at a time", scripted{takes: 10 * time.Millisecond, allowed: 1}, Config{Duration: time.Second}, Tally{Allowed: 99}, 99, 99, 10 * time.Millisecond, ""},
		{"after a warm-up", scripted{takes: 300 * time.Millisecond, allowed: 1}, Config{Warmup: time.Second, Duration: time.Second}, Tally{Allowed: 3}, 3, 3, 300 * time.Millisecond, ""},
		{"batches", scripted{takes: 300 * time.Millisecond, allowed: 3}, Config{Batch: 5, Duration: time.Second}, Tally{Allowed: 9, Denied: 6}, 3, 15, 300 * time.Millisecond, ""},
		{"errors pause", scripted{takes: 15 * time.Millisecond, err: refused}, Config{Batch: 2, Duration: 100 * time.Millisecond}, Tally{Errors: 8}, 4, 0, 15 * time.Millisecond, "refused"},
		{"no answer", scripted{takes: time.Hour, allowed: 1}, Config{Duration: 6 * time.Second}, Tally{Errors: 1}, 1, 0, 6 * time.Second, "no answer for 6s"},
		{"no answer yet", scripted{takes: time.Hour, allowed: 1}, Config{Duration: 4 * time.Second}, Tally{}, 0, 0, 0, ""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c.asker.asked = map[string]int{}
				c.config.Callers, c.config.Keys = 1, NewKeys("k", 10, Uniform)
				c.config.Open = func(int) (Asker, error) { return &c.asker, nil }
				r, err := Run(t.Context(), c.config)
				if err != nil {
					t.Fatal(err)
				}
				if r.Tally != c.want || r.Calls != c.calls || r.Rate() != c.rate {
					t.Errorf("%+v in %d calls, %v a second, want %+v, %d and %v", r.Tally, r.Calls, r.Rate(), c.want, c.calls, c.rate)
				}
				if got := r.Latency(50); got < c.latency*99/100 || got > c.latency*101/100 {
					t.Errorf("latency %v, want %v", got, c.latency)
				}
				if c.err == "" && r.Err != nil || c.err != "" && (r.Err == nil || !strings.Contains(r.Err.Error(), c.err)) {
					t.Errorf("error %v, want %q", r.Err, c.err)
				}
			})
		})
	}
}

func TestRunEndsEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begin := time.Now()
		_, err := Run(ctx, Config{
			Keys: NewKeys("k", 1, Hot), Duration: time.Hour,
			Open: func(int) (Asker, error) { return &scripted{takes: time.Minute, asked: map[string]int{}}, nil },
		})
		if took := time.Since(begin); !errors.Is(err, context.DeadlineExceeded) || took != time.Second {
			t.Errorf("ended after %v with %v, want 1s and that its time was up", took, err)
		}
	})
}

func TestSpreads(t *testing.T) {
	const draws = 100_000
	cases := []struct {
		spread      Spread
		most, fewer float64 // part of all draws: of the first key, at the least and at the most
		distinct    int     // at the least
	}{
		{Uniform, 0.0005, 0.002, 1000},
		{Zipf, 0.1, 0.2, 900},
		{Hot, 1, 1, 1},
	}
	for _, c := range cases {
		t.Run(string(c.spread), func(t *testing.T) {
			next, drawn := NewKeys("user:", 1000, c.spread).draw(1), map[string]int{}
			for range draws {
				drawn[next()]++
			}
			if first := float64(drawn["user:0"]) / draws; first < c.most || first > c.fewer || len(drawn) < c.distinct {
				t.Errorf("the first of %d keys was drawn %.4f of the time, want %v to %v of at least %d", len(drawn), first, c.most, c.fewer, c.distinct)
			}
		})
	}
}
