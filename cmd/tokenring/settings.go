package main

import (
	"net/netip"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tokenring/tokenring/node/limits"
)

// The backends.
const (
	backendCluster = "cluster"
	backendRedis   = "redis"
)

// Settings say how a node runs. They were checked: what can be known to be wrong without
// opening a port is not in them.
type Settings struct {
	ID             string
	Cluster        string
	HTTP           string // listen addresses, host:port
	GRPC           string
	Admin          string
	Metrics        string // "" is off
	Gossip         string
	Peer           string
	Advertise      string   // "" is to be found
	Join           []string // host:port
	Limits         *limits.Set
	LimitsFile     string // "" is none
	Backend        string // backendCluster or backendRedis
	RedisURL       string // "" is none
	OnFailure      limits.Policy
	ForwardTimeout time.Duration
	Replicas       int
	MaxKeys        int
	IdleTTL        time.Duration
	TrustedProxies []netip.Prefix
	TrustedCallers []netip.Prefix
	TrustClientID  bool
	Drain          time.Duration
}

// A setting is read from its flag, the environment or the settings file, always as text.
type setting struct {
	name  string
	kind  string // of the value, for the usage text
	value string // unless given
	usage string
	list  bool // entries are comma-separated, and the flag may be repeated
	set   func(*Settings, string) error
}

const switchKind = "bool" // pflag knows this word

var settings = []setting{
	{name: "id", kind: "name", usage: "stable name of the node (default host name)",
		set: func(s *Settings, v string) error { return setID(&s.ID, v) }},
	{name: "cluster", kind: "name", value: "tokenring", usage: "name of the cluster; nodes of another one are refused",
		set: func(s *Settings, v string) error { return setName(&s.Cluster, v) }},

	{name: "http", kind: "address", value: ":8080", usage: "listen for checks over HTTP, /healthz and /readyz",
		set: func(s *Settings, v string) error { return setListen(&s.HTTP, v) }},
	{name: "grpc", kind: "address", value: ":8081", usage: "listen for checks over gRPC",
		set: func(s *Settings, v string) error { return setListen(&s.GRPC, v) }},
	{name: "admin", kind: "address", value: "127.0.0.1:8082", usage: "listen for metrics, members, limits, keys and pprof",
		set: func(s *Settings, v string) error { return setListen(&s.Admin, v) }},
	{name: "metrics", kind: "address", usage: "listen for /metrics alone, for scrapers that must not reach admin (default off)",
		set: func(s *Settings, v string) error { return setOptional(&s.Metrics, v, setListen) }},
	{name: "gossip", kind: "address", value: ":7946", usage: "listen for membership, over TCP and UDP",
		set: func(s *Settings, v string) error { return setListen(&s.Gossip, v) }},
	{name: "peer", kind: "address", value: ":7947", usage: "listen for other nodes' checks",
		set: func(s *Settings, v string) error { return setListen(&s.Peer, v) }},
	{name: "advertise", kind: "host", usage: "host, without a port, that other nodes use for the gossip and peer ports (default found)",
		set: func(s *Settings, v string) error { return setOptional(&s.Advertise, v, setAdvertise) }},
	{name: "join", kind: "host:port,...", list: true, usage: "seeds; a DNS name stands for all its addresses (default none)",
		set: func(s *Settings, v string) error { return setJoin(&s.Join, v) }},

	{name: "limits", kind: "file", usage: "limits file (default none)",
		set: func(s *Settings, v string) error { s.LimitsFile = v; return nil }},
	{name: "backend", kind: "name", value: backendCluster, usage: "where buckets are held: cluster or redis",
		set: func(s *Settings, v string) error { return setOneOf(&s.Backend, v, backendCluster, backendRedis) }},
	{name: "redis-url", kind: "url,...", list: true,
		usage: "redis://, rediss:// or unix://, several being shards; redis+cluster:// for a Redis Cluster (default none)",
		set:   func(s *Settings, v string) error { return setRedisURL(&s.RedisURL, v) }},
	{name: "on-failure", kind: "policy", value: limits.Allow.String(),
		usage: "answer when no holder can be asked: allow, deny, local or redis; a limit may say otherwise",
		set:   func(s *Settings, v string) (err error) { s.OnFailure, err = limits.ParsePolicy(v); return err }},
	{name: "forward-timeout", kind: "duration", value: "100ms", usage: "the whole time budget for asking another node or Redis",
		set: func(s *Settings, v string) error { return setDuration(&s.ForwardTimeout, v, 1, time.Minute) }},
	{name: "replicas", kind: "number", value: "1", usage: "copies of each bucket on its heir: 0 or 1",
		set: func(s *Settings, v string) error { return setNumber(&s.Replicas, v, 0, 1) }},
	{name: "max-keys", kind: "number", value: "1000000", usage: "buckets held; copies have an equal cap of their own",
		set: func(s *Settings, v string) error { return setNumber(&s.MaxKeys, v, 1, 1<<31-1) }},
	{name: "idle-ttl", kind: "duration", value: "1h", usage: "silence after which a bucket that never refills is dropped",
		set: func(s *Settings, v string) error { return setDuration(&s.IdleTTL, v, 1, forever) }},

	{name: "trusted-proxies", kind: "prefix,...", value: "127.0.0.0/8,::1/128", list: true,
		usage: "TCP peers whose X-Forwarded-For and identity headers are believed",
		set:   func(s *Settings, v string) error { return setPrefixes(&s.TrustedProxies, v) }},
	{name: "trusted-callers", kind: "prefix,...", value: "127.0.0.0/8,::1/128", list: true,
		usage: "clients that may send a key, an inline limit or a negative cost",
		set:   func(s *Settings, v string) error { return setPrefixes(&s.TrustedCallers, v) }},
	{name: "trust-client-id", kind: switchKind, value: "false", usage: "trust every caller (default false)",
		set: func(s *Settings, v string) error { return setSwitch(&s.TrustClientID, v) }},
	{name: "drain", kind: "duration", value: "5s",
		usage: "how long a node that has handed everything over still answers what load balancers send",
		set:   func(s *Settings, v string) error { return setDuration(&s.Drain, v, 0, forever) }},
}

// find returns the setting of that name, or nil.
func find(name string) *setting {
	for i := range settings {
		if settings[i].name == name {
			return &settings[i]
		}
	}
	return nil
}

// text is a flag's value as it was given: it is read only once it is known whether it
// counts.
type text struct {
	value string
	kind  string
	list  bool
	given bool
}

func (t *text) String() string { return t.value }
func (t *text) Type() string   { return t.kind }

// IsBoolFlag is asked by pflag: such a flag needs no value.
func (t *text) IsBoolFlag() bool { return t.kind == switchKind }

func (t *text) Set(v string) error {
	if t.list && t.given {
		v = t.value + "," + v
	}
	t.value, t.given = v, true
	return nil
}

// addFlags defines the flags of serve.
func addFlags(flags *pflag.FlagSet) {
	flags.SortFlags = false
	flags.Var(&text{kind: "file"}, configName, "YAML file with settings, named as the flags are (default none)")
	for _, s := range settings {
		f := flags.VarPF(&text{value: s.value, kind: s.kind, list: s.list}, s.name, "", s.usage)
		if s.kind == switchKind {
			f.NoOptDefVal = "true"
		}
	}
}

func newServe() *cobra.Command {
	c := &cobra.Command{
		Use:   "serve",
		Short: "Run one node",
		Long: `Run one node. Without any flags it is a working cluster of its own.

Every flag is also a variable, TOKENRING_MAX_KEYS for --max-keys, and a field of the
file that --config names. Flags come before variables, variables before the file.
REDIS_URL and TRUST_CLIENT_ID work without the prefix, too.`,
		Args: noArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			s, err := load(c.Flags(), os.Environ(), os.Hostname)
			if err != nil {
				return err
			}
			return serve(c.Context(), s, c.ErrOrStderr())
		},
	}
	addFlags(c.Flags())
	return c
}
