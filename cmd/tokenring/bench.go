package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/tokenring/tokenring/transport/client"
	"github.com/tokenring/tokenring/transport/loadgen"
)

// A bench is what the command line asks for.
type bench struct {
	addrs    addresses
	protocol string
	limit    string
	prefix   string
	keys     int
	spread   string
	callers  int
	batch    int
	warmup   time.Duration
	duration time.Duration
	out      output
}

// Bounds of what may be asked for.
const (
	mostCallers = 10_000
	mostKeys    = 10_000_000
	mostBatch   = 1000 // checks, of the API
)

func newBench() *cobra.Command {
	b := bench{addrs: addresses{"127.0.0.1:8080"}}
	c := &cobra.Command{
		Use:   "bench",
		Short: "Ask nodes as fast as they answer, and say how fast that is",
		Long: `Asks nodes as fast as they answer: each caller asks again as soon as it has its answer.

The rate and the latencies are those of the nodes and of this program together. "cpu" says
how many cores this program kept busy: where it is close to all that the machine has, or
nodes run on the same machine, it is part of what is measured.

Buckets are real ones: give the limit enough tokens to measure what is allowed.`,
		Example: `  tokenring bench --limit api
  tokenring bench --protocol grpc --addr 10.0.0.1:8081,10.0.0.2:8081 --callers 200
  tokenring bench --protocol client --addr 127.0.0.1:8081 --spread zipf -o json`,
		Args: noArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			if !c.Flags().Changed("addr") && b.protocol != protocolHTTP {
				b.addrs = addresses{"127.0.0.1:8081"}
			}
			if err := b.validate(); err != nil {
				return err
			}
			return b.run(c.Context(), c.OutOrStdout())
		},
	}
	f := c.Flags()
	f.Var(&b.addrs, "addr", "addresses of nodes, for HTTP or gRPC (default 127.0.0.1:8080, or :8081 for gRPC)")
	f.StringVar(&b.protocol, "protocol", protocolHTTP, "http, grpc (a call a check), or client (the Go client: all callers share one stream to each node)")
	f.StringVar(&b.limit, "limit", "", "`name` of the limit (default \"default\")")
	f.StringVar(&b.prefix, "prefix", "bench:", "what all keys begin with")
	f.IntVar(&b.keys, "keys", 100_000, "number of different keys")
	f.StringVar(&b.spread, "spread", string(loadgen.Uniform), "how often each key is asked for: uniform, zipf, or hot (one key alone)")
	f.IntVar(&b.callers, "callers", 64, "how many ask at the same time; over HTTP each has a connection of its own")
	f.IntVar(&b.batch, "batch", 1, "checks in a call")
	f.DurationVar(&b.warmup, "warmup", time.Second, "time before the measured one")
	f.DurationVar(&b.duration, "duration", 10*time.Second, "measured time")
	b.out.addFlag(c)
	return c
}

// The values of --protocol.
const (
	protocolHTTP   = "http"
	protocolGRPC   = "grpc"
	protocolClient = "client"
)

func (b *bench) validate() error {
	for _, f := range []struct {
		name        string
		value, most int
	}{{"keys", b.keys, mostKeys}, {"callers", b.callers, mostCallers}, {"batch", b.batch, mostBatch}} {
		if f.value < 1 || f.value > f.most {
			return fmt.Errorf("--%s: %d is out of range: want 1 to %d", f.name, f.value, f.most)
		}
	}
	if b.warmup < 0 || b.duration <= 0 {
		return errors.New("--duration must be above zero and --warmup not below")
	}
	if err := setOneOf(&b.protocol, b.protocol, protocolHTTP, protocolGRPC, protocolClient); err != nil {
		return fmt.Errorf("--protocol: %w", err)
	}
	if err := setOneOf(&b.spread, b.spread, string(loadgen.Uniform), string(loadgen.Zipf), string(loadgen.Hot)); err != nil {
		return fmt.Errorf("--spread: %w", err)
	}
	return nil
}

func (b *bench) run(ctx context.Context, stdout io.Writer) error {
	open, done, err := b.open(ctx)
	if err != nil {
		return err
	}
	defer done()
	if err := b.tryOnce(ctx, open); err != nil {
		return fmt.Errorf("ask nodes: %w", err)
	}
	r, err := loadgen.Run(ctx, loadgen.Config{
		Callers: b.callers, Batch: b.batch, Warmup: b.warmup, Duration: b.duration,
		Keys: loadgen.NewKeys(b.prefix, b.keys, loadgen.Spread(b.spread)), Open: open,
	})
	if err != nil {
		return fmt.Errorf("ask nodes: %w", err)
	}
	if err := b.print(stdout, r); err != nil {
		return fmt.Errorf("print result: %w", err)
	}
	if r.Err != nil {
		return fmt.Errorf("%d of %d checks failed: %w", r.Errors, r.Errors+r.Allowed+r.Denied, r.Err)
	}
	return nil
}

// tryOnce finds out what is wrong before any time is spent on it.
func (b *bench) tryOnce(ctx context.Context, open func(int) (loadgen.Asker, error)) error {
	asker, err := open(0)
	if err != nil {
		return err
	}
	return asker.Ask(ctx, []string{b.prefix + "0"}, &loadgen.Tally{})
}

// open returns what opens callers, and what closes their connections.
func (b *bench) open(ctx context.Context) (func(int) (loadgen.Asker, error), func(), error) {
	switch b.protocol {
	case protocolGRPC:
		conns, err := loadgen.Dial(b.addrs, b.callers)
		if err != nil {
			return nil, nil, err
		}
		return loadgen.GRPC(conns, b.limit), func() { closeAll(conns) }, nil
	case protocolClient:
		c, err := client.New(client.Config{Addrs: b.addrs})
		if err != nil {
			return nil, nil, fmt.Errorf("make client: %w", err)
		}
		c.Start()
		return loadgen.Client(c, b.limit), func() { _ = c.Close(context.WithoutCancel(ctx)) }, nil
	}
	return loadgen.HTTP(b.addrs, b.limit), func() {}, nil
}

func closeAll(conns []*grpc.ClientConn) {
	for _, conn := range conns {
		_ = conn.Close() // nothing is open on it
	}
}

// benchResult is the result as JSON.
type benchResult struct {
	Protocol string  `json:"protocol"`
	Callers  int     `json:"callers"`
	Batch    int     `json:"batch"`
	Spread   string  `json:"spread"`
	Seconds  float64 `json:"seconds"`
	Rate     float64 `json:"checks_per_second"`
	loadgen.Tally
	Latency latencies `json:"latency_ms"` // of calls
	CPU     float64   `json:"cpu"`        // cores that this program kept busy
}

type latencies struct {
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p99_9"`
	Max  float64 `json:"max"`
}

func (b *bench) print(w io.Writer, r *loadgen.Result) error {
	ms := func(percent float64) float64 { return math.Round(float64(r.Latency(percent))/1e3) / 1e3 }
	all := benchResult{
		Protocol: b.protocol, Callers: b.callers, Batch: b.batch, Spread: b.spread, Seconds: r.Duration.Seconds(),
		Rate: math.Round(r.Rate()), Tally: r.Tally, CPU: math.Round(r.CPUShare()*100) / 100,
		Latency: latencies{ms(50), ms(90), ms(99), ms(99.9), ms(100)},
	}
	if b.out.json {
		return json.NewEncoder(w).Encode(all)
	}
	l := all.Latency
	_, err := fmt.Fprintf(w, `rate     %.0f checks/s, %d callers, batches of %d, %s keys, over %s for %v
latency  p50 %v  p90 %v  p99 %v  p99.9 %v  max %v ms
answers  %d allowed, %d denied, of these %d degraded; %d errors
cpu      %.2f cores by this program
`, all.Rate, b.callers, b.batch, b.spread, b.protocol, r.Duration, l.P50, l.P90, l.P99, l.P999, l.Max,
		r.Allowed, r.Denied, r.Degraded, r.Errors, all.CPU)
	return err
}

// addresses is the value of a flag that names nodes.
type addresses []string

func (a *addresses) String() string { return strings.Join(*a, ",") }
func (a *addresses) Type() string   { return "addresses" }

func (a *addresses) Set(s string) error {
	var all []string
	for addr := range strings.SplitSeq(s, ",") {
		var one string
		if err := setListen(&one, strings.TrimSpace(addr)); err != nil {
			return err
		}
		all = append(all, one)
	}
	*a = all
	return nil
}
