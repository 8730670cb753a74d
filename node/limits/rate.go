package limits

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/tokenring/tokenring/bucket"
)

// What errors about a rate or a burst end with.
const (
	ratesAllowed = "want N/s, N/m, N/h, N/d or N/15m (any duration above zero), N from 1 on, or 0 for never"
	burstAllowed = "want a whole number of tokens, 0 or more"
)

// ParseRate reads a rate such as 100/m: so many tokens come back in so long. What is
// behind the slash is s, m, h, d or any duration that time.ParseDuration reads. The rate
// "0" never refills; tokens and per are then 0.
func ParseRate(s string) (tokens int64, per time.Duration, err error) {
	if s == "0" {
		return 0, 0, nil
	}
	count, unit, found := strings.Cut(s, "/")
	if !found || !digits(count) {
		return 0, 0, fmt.Errorf("%s is not a rate: %s", quote(s), ratesAllowed)
	}
	tokens, err = strconv.ParseInt(count, 10, 64)
	if err != nil {
		return 0, 0, fmt.Errorf("%s is too large: at most %d tokens", quote(s), int64(math.MaxInt64))
	}
	per, ok := parsePer(unit)
	if tokens == 0 || !ok {
		return 0, 0, fmt.Errorf("%s is not a rate: %s", quote(s), ratesAllowed)
	}
	return tokens, per, nil
}

func parsePer(s string) (time.Duration, bool) {
	switch s {
	case "s":
		return time.Second, true
	case "m":
		return time.Minute, true
	case "h":
		return time.Hour, true
	case "d":
		return 24 * time.Hour, true
	}
	d, err := time.ParseDuration(s)
	return d, err == nil && d > 0 && s[0] != '+'
}

func digits(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return s != ""
}

// quote shows a client its own words, as far as an error message has room for them.
func quote(s string) string {
	const most = 64 // bytes
	if len(s) > most {
		s = s[:most] + "..."
	}
	return strconv.Quote(s)
}

// A fieldError says which field of a limit is wrong, so that whoever knows where the
// field was written can say so.
type fieldError struct {
	field string
	err   error
}

func (e *fieldError) Error() string { return e.field + ": " + e.err.Error() }
func (e *fieldError) Unwrap() error { return e.err }

// Inline returns the limit that a check brought along. A burst that is left out is the
// number of tokens in the rate; a rate of 0 needs one. The error names the field.
func Inline(rate string, burst *int64) (bucket.Limit, error) {
	tokens, per, err := ParseRate(rate)
	if err != nil {
		return bucket.Limit{}, &fieldError{"rate", err}
	}
	field := "burst"
	if burst == nil {
		if tokens == 0 {
			return bucket.Limit{}, &fieldError{"burst", errors.New("is needed with a rate of 0")}
		}
		field, burst = "rate", &tokens
	}
	if *burst < 0 {
		return bucket.Limit{}, &fieldError{"burst", fmt.Errorf("%d is not a burst: %s", *burst, burstAllowed)}
	}
	l, err := bucket.NewLimit(tokens, per, *burst)
	if err != nil {
		return bucket.Limit{}, &fieldError{field, err}
	}
	return l, nil
}
