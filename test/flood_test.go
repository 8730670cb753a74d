package test

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"encoding/json"

	"github.com/tokenring/tokenring/test/harness"
)

// 50 000 clients come by once, from as many addresses, to a node that holds 10 000
// buckets: it never holds more, refuses nobody for want of room, and a busy client that
// has spent everything has still spent everything afterwards.
func TestFloodOfAddresses(t *testing.T) {
	const clients, most = 50_000, 10_000
	c := harness.Start(t, harness.Config{
		Nodes: 1, Flags: []string{"--max-keys", strconv.Itoa(most)},
		Limits: "limits:\n  - {name: default, rate: 1/m, burst: 20}\n",
	})
	n := c.Nodes()[0]
	busy := address(clients + 1)
	for range 20 {
		if a := checkFrom(t, n, busy); !a.Allowed {
			t.Fatalf("the busy client's first checks: %+v", a)
		}
	}
	var refused, over, next atomic.Int64
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for i := next.Add(1); i <= clients; i = next.Add(1) {
				if a := checkFrom(t, n, address(int(i))); !a.Allowed || a.Degraded || a.Remaining != 19 {
					refused.Add(1)
				}
				if i%1000 == 0 && metric(t, n, "tokenring_keys") > most {
					over.Add(1)
				}
				if i%500 == 0 && checkFrom(t, n, busy).Allowed {
					t.Error("the busy client's bucket has filled during the flood")
				}
			}
		})
	}
	wg.Wait()
	if refused.Load() > 0 || over.Load() > 0 {
		t.Errorf("%d of %d clients refused, %d times more than %d buckets held", refused.Load(), clients, over.Load(), most)
	}
	if a := checkFrom(t, n, busy); a.Allowed || a.Remaining != 0 {
		t.Errorf("the busy client after the flood: %+v, want an empty bucket", a)
	}
	held, lossy, full := metric(t, n, "tokenring_keys"), metric(t, n, `tokenring_evictions_total{kind="lossy"}`), metric(t, n, `tokenring_evictions_total{kind="full"}`)
	t.Logf("%d clients: %v buckets held, %v evicted with a loss, %v full", clients, held, lossy, full)
	if held > most || held < most*9/10 || held+lossy+full != clients+1 {
		t.Errorf("%v held, %v and %v dropped of %d: they do not add up", held, lossy, full, clients+1)
	}
}

// address returns a public address for each number.
func address(i int) string { return fmt.Sprintf("203.%d.%d.%d", i>>16, i>>8&255, i&255) }

// checkFrom asks as a proxy does for a client at an address.
func checkFrom(t *testing.T, n *harness.Node, addr string) harness.Answer {
	t.Helper()
	reply, err := harness.Do(inTime(t), http.MethodGet, "http://"+n.HTTP+"/v1/check", nil, http.Header{"X-Forwarded-For": {addr}})
	if err != nil {
		t.Error(err)
		return harness.Answer{}
	}
	var a harness.Answer
	if err := json.Unmarshal(reply.Body, &a); err != nil || a.Key != addr {
		t.Errorf("from %s: status %d, %s", addr, reply.Status, reply.Body)
	}
	return a
}

// metric reads one figure of a node.
func metric(t *testing.T, n *harness.Node, name string) float64 {
	t.Helper()
	reply, err := harness.Do(inTime(t), http.MethodGet, "http://"+n.Admin+"/metrics", nil, nil)
	if err != nil {
		t.Error(err)
		return 0
	}
	for line := range strings.Lines(string(reply.Body)) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), name+" "); ok {
			v, err := strconv.ParseFloat(value, 64)
			if err != nil {
				t.Error(err)
			}
			return v
		}
	}
	t.Errorf("no metric %s", name)
	return 0
}
