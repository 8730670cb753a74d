package main

import (
	"bytes"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/tokenring/tokenring/node/limits"
)

// loadFrom loads settings as serve does, on a machine called host.
func loadFrom(t *testing.T, args, environ []string) (Settings, error) {
	t.Helper()
	flags := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	addFlags(flags)
	if err := flags.Parse(args); err != nil {
		t.Fatal(err)
	}
	return load(flags, environ, func() (string, error) { return "host", nil })
}

// file writes a file into the current directory, which is the test's own, so that errors
// name it by a short path.
func file(t *testing.T, name, content string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func prefixes(list ...string) []netip.Prefix {
	all := make([]netip.Prefix, len(list))
	for i, p := range list {
		all[i] = netip.MustParsePrefix(p)
	}
	return all
}

func defaults() Settings {
	return Settings{
		ID: "host", Cluster: "tokenring",
		HTTP: ":8080", GRPC: ":8081", Admin: "127.0.0.1:8082", Gossip: ":7946", Peer: ":7947",
		Limits: limits.Default(limits.Allow), Backend: "cluster", ForwardTimeout: 100 * time.Millisecond,
		Replicas: 1, MaxKeys: 1_000_000, IdleTTL: time.Hour, Drain: 5 * time.Second,
		TrustedProxies: prefixes("127.0.0.0/8", "::1/128"), TrustedCallers: prefixes("127.0.0.0/8", "::1/128"),
	}
}

func TestDefaults(t *testing.T) {
	s, err := loadFrom(t, nil, []string{"PATH=/bin", "tokenring_id=x", "TOKENRING=x", "REDIS=x", "=", "junk"})
	if want := defaults(); err != nil || !reflect.DeepEqual(s, want) {
		t.Errorf("settings\n%+v, error %v, want\n%+v", s, err, want)
	}
}

// everySetting gives each setting a value of its own.
var everySetting = map[string]string{
	"id": "node-1", "cluster": "eu.west", "http": "127.0.0.1:0", "grpc": "[::1]:9000", "admin": "localhost:9001",
	"metrics": ":9002", "gossip": "10.0.0.1:0", "peer": ":0", "advertise": "node-1.example.org",
	"join": "a:7946, [2001:db8::1]:7946,,10.0.0.2:1", "limits": "", "backend": "redis", "redis-url": "redis://a,redis://b:1/2",
	"on-failure": "local", "forward-timeout": "1m", "replicas": "0", "max-keys": "2147483647", "idle-ttl": "1ns",
	"trusted-proxies": "10.0.0.0/8,192.0.2.1,2001:db8::/32", "trusted-callers": "", "trust-client-id": "true", "drain": "0s",
}

func TestEverySettingFromEverySource(t *testing.T) {
	want := Settings{
		ID: "node-1", Cluster: "eu.west", HTTP: "127.0.0.1:0", GRPC: "[::1]:9000", Admin: "localhost:9001",
		Metrics: ":9002", Gossip: "10.0.0.1:0", Peer: ":0", Advertise: "node-1.example.org",
		Join:   []string{"a:7946", "[2001:db8::1]:7946", "10.0.0.2:1"},
		Limits: limits.Default(limits.Local), Backend: "redis", RedisURL: "redis://a,redis://b:1/2", OnFailure: limits.Local,
		ForwardTimeout: time.Minute, MaxKeys: 1<<31 - 1, IdleTTL: 1,
		TrustedProxies: prefixes("10.0.0.0/8", "192.0.2.1/32", "2001:db8::/32"), TrustClientID: true,
	}
	var args, environ []string
	var yaml strings.Builder
	for _, set := range settings {
		value, ok := everySetting[set.name]
		if !ok {
			t.Fatalf("no value for setting %s", set.name)
		}
		args = append(args, "--"+set.name+"="+value)
		environ = append(environ, variable(set.name)+"="+value)
		yaml.WriteString(set.name + ": '" + value + "'\n")
	}
	// An empty variable is none, so what is wanted empty is given otherwise.
	environ = append(environ, "TOKENRING_TRUSTED_CALLERS=,")
	t.Chdir(t.TempDir())
	file(t, "config.yaml", yaml.String())
	for name, source := range map[string]struct{ args, environ []string }{
		"flags":                 {args, nil},
		"environment":           {nil, environ},
		"file":                  {[]string{"--config", "config.yaml"}, nil},
		"file from environment": {nil, []string{"TOKENRING_CONFIG=config.yaml"}},
	} {
		s, err := loadFrom(t, source.args, source.environ)
		if err != nil || len(s.TrustedCallers) != 0 {
			t.Errorf("%s: trusted callers %v, error %v", name, s.TrustedCallers, err)
		}
		s.TrustedCallers = nil
		if !reflect.DeepEqual(s, want) {
			t.Errorf("%s: settings\n%+v, want\n%+v", name, s, want)
		}
	}
}

func TestPrecedence(t *testing.T) {
	t.Chdir(t.TempDir())
	file(t, "config.yaml", `# settings
id: &name from-file
cluster: *name
join:
  - a:1
  - b:2
redis-url: redis://file
replicas: 0
max-keys: 77
trust-client-id: false
forward-timeout: 2s
metrics: ""
`)
	file(t, "empty.yaml", "# nothing\n")
	for _, c := range []struct {
		name          string
		args, environ []string
		want          func(*Settings)
	}{
		{"file", []string{"--config", "config.yaml"}, nil, func(s *Settings) {}},
		{"variable before file", []string{"--config", "config.yaml"}, []string{"TOKENRING_ID=from-env", "TOKENRING_JOIN=c:3"},
			func(s *Settings) { s.ID, s.Join = "from-env", []string{"c:3"} }},
		{"flag before both", []string{"--config", "config.yaml", "--id", "from-flag"}, []string{"TOKENRING_ID=from-env"},
			func(s *Settings) { s.ID = "from-flag" }},
		{"flag that says the default", []string{"--config", "config.yaml", "--replicas", "1"}, nil, func(s *Settings) { s.Replicas = 1 }},
		{"empty variable", []string{"--config", "config.yaml"}, []string{"TOKENRING_ID=", "TOKENRING_FOO=", "REDIS_URL="}, func(s *Settings) {}},
		{"empty flag", []string{"--config", "config.yaml", "--join", ""}, nil, func(s *Settings) { s.Join = nil }},
		{"flag repeated", []string{"--config=config.yaml", "--join=x:1,y:2", "--join=z:3"}, nil,
			func(s *Settings) { s.Join = []string{"x:1", "y:2", "z:3"} }},
		{"last flag counts", []string{"--config=config.yaml", "--id=x", "--id=y"}, nil, func(s *Settings) { s.ID = "y" }},
		{"name without the prefix", []string{"--config=config.yaml"}, []string{"REDIS_URL=redis://bare", "TRUST_CLIENT_ID=1"},
			func(s *Settings) { s.RedisURL, s.TrustClientID = "redis://bare", true }},
		{"name with the prefix wins", []string{"--config=config.yaml"},
			[]string{"TOKENRING_REDIS_URL=redis://prefixed", "REDIS_URL=redis://bare", "TRUST_CLIENT_ID=1", "TOKENRING_TRUST_CLIENT_ID=0"},
			func(s *Settings) { s.RedisURL = "redis://prefixed" }},
		{"switch without a value", []string{"--config=config.yaml", "--trust-client-id"}, nil, func(s *Settings) { s.TrustClientID = true }},
		{"flag of the file before the variable", []string{"--config=config.yaml"}, []string{"TOKENRING_CONFIG=missing.yaml"}, func(s *Settings) {}},
		{"file switched off", []string{"--config="}, []string{"TOKENRING_CONFIG=missing.yaml"}, func(s *Settings) { *s = defaults() }},
		{"empty file", []string{"--config=empty.yaml"}, nil, func(s *Settings) { *s = defaults() }},
	} {
		t.Run(c.name, func(t *testing.T) {
			want := defaults()
			want.ID, want.Cluster, want.Join = "from-file", "from-file", []string{"a:1", "b:2"}
			want.RedisURL, want.Replicas, want.MaxKeys, want.ForwardTimeout = "redis://file", 0, 77, 2*time.Second
			c.want(&want)
			if s, err := loadFrom(t, c.args, c.environ); err != nil || !reflect.DeepEqual(s, want) {
				t.Errorf("settings\n%+v, error %v, want\n%+v", s, err, want)
			}
		})
	}
}

// Kubernetes describes every service of the namespace to every container.
func TestVariablesOfKubernetes(t *testing.T) {
	injected := []string{
		"TOKENRING_SERVICE_HOST=10.96.0.1", "TOKENRING_SERVICE_PORT=8080", "TOKENRING_SERVICE_PORT_HTTP=8080",
		"TOKENRING_PORT=tcp://10.96.0.1:8080", "TOKENRING_PORT_8080_TCP=tcp://10.96.0.1:8080", "TOKENRING_PORT_8080_TCP_PROTO=tcp",
		"TOKENRING_PORT_8080_TCP_PORT=8080", "TOKENRING_PORT_8080_TCP_ADDR=10.96.0.1", "TOKENRING_PORT_7946_UDP=udp://10.96.0.1:7946",
		"TOKENRING_FOO_SERVICE_HOST=10.96.0.1", "TOKENRING_HTTP_PORT=tcp://10.96.0.1:80", "TOKENRING_A_B_PORT_80_SCTP_PROTO=sctp",
		"TOKENRING_MAX_KEYS_SERVICE_PORT=80", "TOKENRING_PEER_HEADLESS_SERVICE_PORT_GRPC_PEER=7947",
	}
	if s, err := loadFrom(t, nil, injected); err != nil || !reflect.DeepEqual(s, defaults()) {
		t.Errorf("settings %+v, error %v", s, err)
	}
	for _, unknown := range []string{
		"TOKENRING_FOO=1", "TOKENRING_=1", "TOKENRING_id=x", "TOKENRING_MAX-KEYS=1", "TOKENRING_HTTP_PORT=8080", "TOKENRING_PORT=8080",
		"TOKENRING_PORT_TCP=tcp://10.96.0.1:80", "TOKENRING_PORT_8080=8080", "TOKENRING_SERVICE=x",
		"TOKENRING_HELP=true", "TOKENRING_TRUST_CLIENT=1",
	} {
		name, _, _ := strings.Cut(unknown, "=")
		want := name + ": unknown variable: want TOKENRING_ and a flag of serve in capitals, - as _"
		if _, err := loadFrom(t, nil, []string{unknown}); message(err) != want {
			t.Errorf("%s: error %v, want %s", unknown, err, want)
		}
	}
}

func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestHelpNamesEverything(t *testing.T) {
	var out, errs bytes.Buffer
	if code := run(t.Context(), []string{"serve", "--help"}, &out, &errs); code != 0 || errs.Len() > 0 {
		t.Fatalf("exit code %d, %s", code, &errs)
	}
	for _, set := range settings {
		line := ""
		for l := range strings.Lines(out.String()) {
			if strings.HasPrefix(strings.TrimSpace(l), "--"+set.name) {
				line = l
			}
		}
		if !strings.Contains(line, "(default ") || set.value != "" && !strings.Contains(line, "(default "+set.value+")") {
			t.Errorf("the help on --%s does not say its default: %q", set.name, line)
		}
	}
}

func TestHostName(t *testing.T) {
	flags := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	addFlags(flags)
	for _, c := range []struct {
		name string
		err  error
		want string
	}{
		{"web-1.example.org", nil, ""},
		{"my_host.", nil, ""},
		{"", nil, `--id: the host name "" does not fit: give the node a name with --id, ` + nameWanted},
		{strings.Repeat("h", 65), nil, `--id: the host name "` + strings.Repeat("h", 65) + `" does not fit: give the node a name with --id, ` + nameWanted},
		{"", errors.New("no name"), `--id: read host name: no name: give the node a name with --id`},
	} {
		s, err := load(flags, nil, func() (string, error) { return c.name, c.err })
		if message(err) != c.want || err == nil && s.ID != c.name {
			t.Errorf("host name %q: id %q, error %v, want %s", c.name, s.ID, err, c.want)
		}
	}
	if _, err := loadFrom(t, []string{"--id", ""}, nil); message(err) != `--id: "" is not a name: `+nameWanted {
		t.Errorf("an empty id: error %v", err)
	}
}

func TestLimitsFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "limits.yaml")
	file(t, path, "limits: [{name: api, rate: 5/s}, {name: b, unlimited: true, on_failure: redis}]")
	s, err := loadFrom(t, []string{"--limits", path, "--on-failure", "deny", "--redis-url", "redis://h"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if r := s.Limits.Resolve("api", "k"); r == nil || r.Limit.Burst() != 5 || r.OnFailure != limits.Deny {
		t.Errorf("limit api is %+v", r)
	}
	if r := s.Limits.Resolve("default", "k"); r == nil || r.OnFailure != limits.Deny {
		t.Errorf("limit default is %+v", r)
	}
}
