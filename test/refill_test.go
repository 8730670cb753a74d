package test

import (
	"slices"
	"testing"
	"time"

	"github.com/tokenring/tokenring/test/harness"
)

// Limit busy of churnLimits.
const (
	busyBurst = 20
	busyRate  = 5 // per second
)

// Of 2500 buckets of 20 that refill with 5 per second, through all planned changes, none
// gives more than that in any window of time, and none denies what an exact bucket would
// have allowed. A hundred keys at a time are asked for twice of what they have, the others
// get full again.
func TestExactWithRefill(t *testing.T) {
	const hot, every = 100, 750 * time.Millisecond
	costs := []int64{1, 2, 3}
	c := harness.Start(t, harness.Config{Nodes: 3, Flags: patient, Limits: churnLimits})
	begin := time.Now()
	l := startLoad(t, loadClients, c.Nodes(), func(client, i int) harness.Check {
		from := int(time.Since(begin)/every) * hot
		return harness.Check{Limit: "busy", Key: churnKey(from + (client*7+i)%hot), Cost: &costs[i%len(costs)]}
	})
	changes(t, c, l, func(string) {})
	samples := l.end()
	for _, s := range samples {
		if s.err != nil || s.answer.Degraded {
			t.Errorf("a caller of %s got %+v, %v after %v", s.asked, s.answer, s.err, s.took)
		}
	}
	t.Logf("%s", latencies(samples))
	checkRefilling(t, samples, busyRate, busyBurst, 0)
	report(t, c)
}

// checkRefilling holds what clients saw of refilling buckets against I2, with so much
// excess granted to each key, and against I7. It returns the sum of what was in excess.
func checkRefilling(t *testing.T, samples []sample, rate, burst, granted float64) float64 {
	t.Helper()
	keys := map[string][]sample{}
	for _, s := range samples {
		keys[s.key] = append(keys[s.key], s)
	}
	allowed, denied, sum, most, left := 0, 0, 0.0, 0.0, 0.0
	for key, of := range keys {
		slices.SortFunc(of, func(a, b sample) int { return a.at.Compare(b.at) })
		over := excess(of, rate, burst)
		if sum, most = sum+max(0, over), max(most, over); over > granted {
			t.Errorf("key %s gave %.2f more than its limit in a window, want at most %.2f", key, over, granted)
		}
		for _, s := range of {
			switch {
			case s.err != nil || s.answer.Degraded:
			case s.answer.Allowed:
				allowed++
			default:
				denied++
				had := surely(of, s, rate, burst) - float64(s.cost)
				// A token is rate x (freeze + transfer), rounded up.
				if left = max(left, had); had >= 1 {
					t.Errorf("key %s was denied %d at %s with at least %.2f more left", key, s.cost, s.at.Format("05.000"), had)
				}
			}
		}
	}
	t.Logf("%d keys, %d allowed, %d denied; most beyond a limit: %.2f; most left beyond the cost of a denied check: %.2f",
		len(keys), allowed, denied, most, left)
	if allowed == 0 || denied == 0 {
		t.Error("the load has met no limit")
	}
	return sum
}

// excess returns by how much the answers for one key, sorted by their end, went beyond its
// limit in the worst window. An answer counts in those that hold it from question to end.
func excess(of []sample, rate, burst float64) float64 {
	worst := 0.0
	for _, first := range of {
		start, n := first.at.Add(-first.took), 0.0
		for _, s := range of {
			if s.err != nil || s.answer.Degraded || !s.answer.Allowed || s.at.Add(-s.took).Before(start) {
				continue
			}
			n += float64(s.cost)
			worst = max(worst, n-burst-rate*s.at.Sub(start).Seconds())
		}
	}
	return worst
}

// surely returns how many tokens a bucket had at least when it denied an answer, if all
// that may have taken some until then did, and at its end.
func surely(of []sample, denial sample, rate, burst float64) float64 {
	asked, n, least := denial.at.Add(-denial.took), 0.0, burst
	for _, s := range slices.Backward(of) {
		if s.err == nil && !s.answer.Degraded && !s.answer.Allowed || s.at.Add(-s.took).After(denial.at) {
			continue
		}
		n += float64(s.cost)
		least = min(least, burst-n+rate*max(0, asked.Sub(s.at).Seconds()))
	}
	return least
}
