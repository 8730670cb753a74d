package redisstore

import (
	_ "embed"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tokenring/tokenring/bucket"
)

//go:embed take.lua
var source string

// maxUnits bounds a bucket's capacity in the script's units, and what comes back in
// a microsecond.
const maxUnits = 1 << 51

// Supports returns why a limit cannot be kept in Redis, or nil. The error wraps
// bucket.ErrLimit and says what is allowed.
func Supports(l bucket.Limit) error {
	_, _, err := units(l)
	return err
}

// units returns the limit as the script counts: n units come back in a microsecond, d
// units are a token.
func units(l bucket.Limit) (n, d int64, err error) {
	tokens, per := l.Rate()
	shared := gcd(1000, int64(per)) // of nanoseconds in a microsecond, and in the rate
	n, d = tokens*(1000/shared), int64(per)/shared
	if most := maxUnits / (1000 / shared); tokens > most {
		return 0, 0, fmt.Errorf("%w in redis: rate of %d tokens in %v is too high, at most %d",
			bucket.ErrLimit, tokens, per, most)
	}
	if most := maxUnits / d; l.Burst() > most {
		return 0, 0, fmt.Errorf("%w in redis: burst %d is too large for this rate, at most %d",
			bucket.ErrLimit, l.Burst(), most)
	}
	return n, d, nil
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

func storeKey(t *bucket.Take) string { return "tokenring{}:" + t.Name + "\x00" + t.Key }

// scriptArgs returns ARGV as take.lua describes it.
func scriptArgs(t *bucket.Take, idle int64) ([]any, error) {
	n, d, err := units(t.Limit)
	if err != nil {
		return nil, err
	}
	charge := 0
	if t.Charge {
		charge = 1
	}
	version := fmt.Sprintf("%020d", t.Version)
	return []any{n, d, t.Limit.Burst(), version, t.Cost, charge, idle}, nil
}

// decision reads what the script returned.
func decision(reply *redis.Cmd) (bucket.Decision, error) {
	v, err := reply.Int64Slice()
	if err != nil {
		return bucket.Decision{}, fmt.Errorf("read redis script's answer: %w", err)
	}
	if len(v) != 5 {
		return bucket.Decision{}, fmt.Errorf("read redis script's answer: %d values instead of 5", len(v))
	}
	return bucket.Decision{
		Allowed:    v[0] == 1,
		Burst:      v[1],
		Remaining:  v[2],
		RetryAfter: microseconds(v[3]),
		ResetAfter: microseconds(v[4]),
	}, nil
}

func microseconds(n int64) time.Duration {
	if n < 0 {
		return bucket.Never
	}
	return time.Duration(n) * time.Microsecond
}
