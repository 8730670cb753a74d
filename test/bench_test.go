package test

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"strings"
	"testing"

	"github.com/tokenring/tokenring/test/harness"
)

// What bench counts is what the nodes decided: of one bucket all that it holds, but for the
// token that bench takes to try the address.
func TestBench(t *testing.T) {
	c := harness.Start(t, harness.Config{Nodes: 3, Flags: patient, Limits: "limits:\n  - name: once\n    rate: 0\n    burst: 500\n"})
	var http, grpc []string
	for _, n := range c.Nodes() {
		http, grpc = append(http, n.HTTP), append(grpc, n.GRPC)
	}
	for protocol, addrs := range map[string][]string{"http": http, "grpc": grpc, "client": grpc} {
		out := runBench(t, "--protocol", protocol, "--addr", strings.Join(addrs, ","), "--prefix", protocol+":",
			"--limit", "once", "--spread", "hot", "--warmup", "0s", "--duration", "1s", "-o", "json")
		var r struct {
			Allowed, Denied, Degraded, Errors int
			Rate                              float64 `json:"checks_per_second"`
			Latency                           map[string]float64
			CPU                               float64
		}
		if err := json.Unmarshal([]byte(out), &r); err != nil {
			t.Fatalf("%s: %v in %s", protocol, err, out)
		}
		t.Logf("%s: %.0f checks/s, %.2f cores", protocol, r.Rate, r.CPU)
		if r.Allowed != 499 || r.Denied == 0 || r.Degraded != 0 || r.Errors != 0 || r.Rate != float64(r.Allowed+r.Denied) {
			t.Errorf("%s: %s, want 499 allowed, the rest denied, and all of them the rate", protocol, out)
		}
	}
	out := runBench(t, "--addr", strings.Join(http, ","), "--limit", "once", "--callers", "4", "--keys", "10", "--batch", "7", "--warmup", "0s", "--duration", "1s")
	for _, want := range []string{"checks/s, 4 callers, batches of 7, uniform keys, over http for 1s", "p99.9", "0 errors", "cores by this program"} {
		if !strings.Contains(out, want) {
			t.Errorf("want %q in:\n%s", want, out)
		}
	}
}

// runBench returns what bench prints.
func runBench(t *testing.T, args ...string) string {
	t.Helper()
	var errs bytes.Buffer
	cmd := exec.CommandContext(t.Context(), harness.Binary(t), append([]string{"bench"}, args...)...)
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("bench %v: %v: %s", args, err, errs.String())
	}
	return string(out)
}
