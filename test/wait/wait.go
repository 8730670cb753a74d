// Package wait has the one way in which tests wait for something.
package wait

import (
	"testing"
	"time"
)

// For calls cond until it reports true, and ends the test if that takes longer than the
// limit. What names the condition for the reader of a failure.
func For(tb testing.TB, limit time.Duration, what string, cond func() bool) {
	tb.Helper()
	if err := Until(limit, cond); err != nil {
		tb.Fatalf("waited %v for %s", limit, what)
	}
}

// Until is For outside of a test's own goroutine.
func Until(limit time.Duration, cond func() bool) error {
	deadline := time.After(limit)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-deadline:
			return errTimeout
		case <-tick.C:
		}
	}
	return nil
}

var errTimeout = timeoutError{}

type timeoutError struct{}

func (timeoutError) Error() string { return "waited too long" }
