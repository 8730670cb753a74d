package bucket_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/tokenring/tokenring/bucket"
	"github.com/tokenring/tokenring/test/decisions"
)

func TestDecisions(t *testing.T) {
	for _, c := range decisions.Cases() {
		t.Run(c.Name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := bucket.New(bucket.Config{IdleTTL: decisions.IdleTTL})
				for i, step := range c.Steps {
					take, err := step.Take("api", "key")
					if err != nil {
						t.Fatalf("step %d: %v", i, err)
					}
					time.Sleep(step.After)
					// What says nothing any more is swept, so that it is not held by
					// chance until a sweep comes by.
					s.Sweep(1)
					if got := decisions.RoundUp(s.Take(&take).Decision); got != step.Want {
						t.Fatalf("step %d: got %+v, want %+v", i, got, step.Want)
					}
				}
			})
		})
	}
}
