package main

import (
	"bytes"
	"strings"
	"testing"
)

// Every bad setting ends the start with one line that names it as it was given.
func TestBadSettings(t *testing.T) {
	const (
		listen   = ` is not an address: want host:port or :port, port 0 to 65535`
		host     = ` is not a host: want an IP address or a name that others can reach, without a port`
		seed     = ` is not a seed: want host:port, port 1 to 65535`
		network  = ` is not a network: want IP addresses or networks such as 10.0.0.0/8 or 2001:db8::/32, separated by commas`
		duration = ` is not a duration that fits: want such as 100ms, 5s or 1h, `
	)
	for _, c := range []struct{ setting, value, want string }{
		{"id", "-a", `"-a" is not a name: ` + nameWanted},
		{"id", "a b", `"a b" is not a name: ` + nameWanted},
		{"id", strings.Repeat("a", 65), `"` + strings.Repeat("a", 65) + `" is not a name: ` + nameWanted},
		{"cluster", "a/b", `"a/b" is not a name: ` + nameWanted},
		{"http", "8080", `"8080"` + listen},
		{"http", "localhost", `"localhost"` + listen},
		{"http", ":65536", `":65536"` + listen},
		{"http", ":-1", `":-1"` + listen},
		{"http", ":http", `":http"` + listen},
		{"http", ":", `":"` + listen},
		{"grpc", "::1:8081", `"::1:8081"` + listen},
		{"admin", "http://127.0.0.1:80", `"http://127.0.0.1:80"` + listen},
		{"metrics", "off", `"off"` + listen},
		{"gossip", "a b:1", `"a b:1"` + listen},
		{"peer", "[::1]", `"[::1]"` + listen},
		{"advertise", "10.0.0.1:7946", `"10.0.0.1:7946"` + host},
		{"advertise", "[::1]", `"[::1]"` + host},
		{"advertise", "0.0.0.0", `"0.0.0.0"` + host},
		{"advertise", "::", `"::"` + host},
		{"advertise", "a/b", `"a/b"` + host},
		{"join", "a:1,b", `"b"` + seed},
		{"join", "a:0", `"a:0"` + seed},
		{"join", ":7946", `":7946"` + seed},
		{"join", "a:1 b:2", `"a:1 b:2"` + seed},
		{"backend", "memory", `"memory" is unknown: want cluster or redis`},
		{"backend", "Redis", `"Redis" is unknown: want cluster or redis`},
		{"on-failure", "open", `"open" is not a failure policy: want allow, deny, local or redis`},
		{"forward-timeout", "0s", `"0s"` + duration + `above 0, at most 1m0s`},
		{"forward-timeout", "-1s", `"-1s"` + duration + `above 0, at most 1m0s`},
		{"forward-timeout", "61s", `"61s"` + duration + `above 0, at most 1m0s`},
		{"forward-timeout", "100", `"100"` + duration + `above 0, at most 1m0s`},
		{"replicas", "2", `"2" is not a number that fits: want 0 to 1`},
		{"replicas", "-1", `"-1" is not a number that fits: want 0 to 1`},
		{"replicas", "one", `"one" is not a number that fits: want 0 to 1`},
		{"max-keys", "0", `"0" is not a number that fits: want 1 to 2147483647`},
		{"max-keys", "2147483648", `"2147483648" is not a number that fits: want 1 to 2147483647`},
		{"max-keys", "1e6", `"1e6" is not a number that fits: want 1 to 2147483647`},
		{"idle-ttl", "0", `"0"` + duration + `above 0`},
		{"idle-ttl", "1d", `"1d"` + duration + `above 0`},
		{"trusted-proxies", "10.0.0.0/33", `"10.0.0.0/33"` + network},
		{"trusted-proxies", "10.0.0.0/8,localhost", `"localhost"` + network},
		{"trusted-callers", "10.0.0", `"10.0.0"` + network},
		{"trust-client-id", "yes", `"yes" is not a switch: want true or false`},
		{"drain", "-1s", `"-1s"` + duration + `0s or more`},
		{"drain", "5", `"5"` + duration + `0s or more`},
	} {
		t.Chdir(t.TempDir())
		file(t, "config.yaml", "\n"+c.setting+": '"+c.value+"'\n")
		for _, source := range []struct {
			origin        string
			args, environ []string
		}{
			{"--" + c.setting, []string{"--" + c.setting + "=" + c.value}, nil},
			{variable(c.setting), nil, []string{variable(c.setting) + "=" + c.value}},
			{"config.yaml:2: " + c.setting, []string{"--config=config.yaml"}, nil},
		} {
			_, err := loadFrom(t, source.args, source.environ)
			if want := source.origin + ": " + c.want; message(err) != want {
				t.Errorf("error\n%v\nwant\n%s", err, want)
			}
		}
	}
}

func TestBadRedisURLIsNotRepeated(t *testing.T) {
	for _, url := range []string{"secret", "http://u:secret@h", "redis://u:secret@", "redis://u:secret@h:x", "redis+cluster://u:secret@h/1"} {
		_, err := loadFrom(t, nil, []string{"REDIS_URL=" + url})
		if msg := message(err); !strings.HasPrefix(msg, "REDIS_URL: ") || !strings.Contains(msg, "redis://") ||
			strings.Contains(msg, "secret") || strings.Contains(msg, "\n") {
			t.Errorf("%s: error %v", url, err)
		}
	}
}

func TestBadFiles(t *testing.T) {
	const field = ` is not a field: want a flag of serve without its dashes`
	for _, c := range []struct{ config, want string }{
		{"id: a\nmax_keys: 1", `config.yaml:2: "max_keys"` + field},
		{"config: other.yaml", `config.yaml:1: "config"` + field},
		{"<<: {id: a}", `config.yaml:1: "<<"` + field},
		{"[a]: b", `config.yaml:1: ""` + field},
		{"id: a\nid: b", `config.yaml:2: id: is given twice`},
		{"id: [a]", `config.yaml:1: id: is not a single value`},
		{"id: {a: b}", `config.yaml:1: id: is not a single value`},
		{"id:", `config.yaml:1: id: has no value: leave the field out for the default`},
		{"join: {a: b}", `config.yaml:1: join: is not a list`},
		{"join: [[a]]", `config.yaml:1: join: an entry is not a single value`},
		{"join: [~]", `config.yaml:1: join: an entry has no value: leave the field out for the default`},
		{"- id", `config.yaml:1: is not a mapping: want flags of serve and their values`},
		{"~", `config.yaml:1: is not a mapping: want flags of serve and their values`},
		{"id: a\n---\nid: b", `config.yaml:2: a second document: want one alone`},
		{"id: 'a", `config.yaml: yaml: found unexpected end of stream`},
		{"id: a\n---\n]", `config.yaml: yaml: line 2: did not find expected node content`},
	} {
		t.Chdir(t.TempDir())
		file(t, "config.yaml", c.config)
		if _, err := loadFrom(t, []string{"--config", "config.yaml"}, nil); message(err) != c.want {
			t.Errorf("%q: error\n%v\nwant\n%s", c.config, err, c.want)
		}
	}
	for _, c := range []struct {
		args, environ []string
		want          string
	}{
		{[]string{"--config=missing.yaml"}, nil, "--config: open missing.yaml: no such file or directory"},
		{nil, []string{"TOKENRING_CONFIG=missing.yaml"}, "TOKENRING_CONFIG: open missing.yaml: no such file or directory"},
		{[]string{"--limits=missing.yaml"}, nil, "--limits: open missing.yaml: no such file or directory"},
		{[]string{"--limits=."}, nil, "--limits: read .: is a directory"},
	} {
		if _, err := loadFrom(t, c.args, c.environ); message(err) != c.want {
			t.Errorf("error\n%v\nwant\n%s", err, c.want)
		}
	}
}

func TestSettingsThatDoNotFitTogether(t *testing.T) {
	t.Chdir(t.TempDir())
	file(t, "wrong.yaml", "limits:\n- name: a\n  rate: x\n- name: a\n  rate: 1/s")
	file(t, "redis.yaml", "limits: [{name: a, rate: 1/s}, {name: b, rate: 1/s, on_failure: redis}]")
	file(t, "large.yaml", "limits: [{name: a, rate: 1/d}, {name: b, rate: 1/d, on_failure: allow, overrides: [{key: k, burst: 26064}]}]")
	file(t, "both.yaml", "limits: [{name: a, rate: 1/s, burst: 2300000000, on_failure: redis}]")
	file(t, "fits.yaml", "limits: [{name: a, rate: 1/s, on_failure: redis}, {name: b, unlimited: true}]")
	const (
		url   = "--redis-url=redis://h"
		mode  = "--backend=redis"
		stand = "redis cannot stand in for --backend redis: want allow, deny or local"
	)
	for _, c := range []struct {
		args, environ []string
		want          string
	}{
		{[]string{mode}, nil, "--backend: redis needs --redis-url"},
		{[]string{mode, "--redis-url="}, []string{"REDIS_URL=redis://h"}, "--backend: redis needs --redis-url"},
		{[]string{"--on-failure=redis"}, nil, "--on-failure: redis needs --redis-url"},
		{nil, []string{"TOKENRING_ON_FAILURE=redis"}, "TOKENRING_ON_FAILURE: redis needs --redis-url"},
		{[]string{mode, url, "--on-failure=redis"}, nil, "--on-failure: " + stand},
		{[]string{"--limits=wrong.yaml"}, nil, `wrong.yaml:3: limits[0].rate: "x" is not a rate: want N/s, N/m, N/h, N/d or N/15m (any duration above zero), N from 1 on, or 0 for never` +
			"\nwrong.yaml:4: limits[1].name: \"a\" is given twice, first on line 2"},
		{[]string{"--limits=redis.yaml"}, nil, "redis.yaml:1: limits[1]: on_failure: redis needs --redis-url"},
		{[]string{"--limits=redis.yaml", mode, url}, nil, "redis.yaml:1: limits[1]: on_failure: " + stand},
		{[]string{"--limits=large.yaml", mode, url}, nil,
			`large.yaml:1: limits[1].overrides[0]: limit cannot be represented in redis: burst 26064 is too large for this rate, at most 26062`},
		{[]string{"--limits=both.yaml", url}, nil,
			`both.yaml:1: limits[0]: limit cannot be represented in redis: burst 2300000000 is too large for this rate, at most 2251799813`},
		{[]string{"--limits=large.yaml", url}, nil, ""},
		{[]string{"--limits=fits.yaml", url}, nil, ""},
		{[]string{mode, url}, nil, ""},
		{[]string{"--on-failure=redis", url}, nil, ""},
	} {
		if _, err := loadFrom(t, c.args, c.environ); message(err) != c.want {
			t.Errorf("%q: error\n%v\nwant\n%s", c.args, err, c.want)
		}
	}
}

// What cobra finds wrong comes out in one line, too, and with the right exit code.
func TestBadCommandLines(t *testing.T) {
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"serve", "--nope"}, 1, "unknown flag: --nope"},
		{[]string{"serve", "--id"}, 1, "flag needs an argument: --id"},
		{[]string{"serve", "now"}, 1, `unexpected argument "now": want flags alone`},
		{[]string{"serve", "--id=-"}, 1, `--id: "-" is not a name: ` + nameWanted},
		{[]string{"members", "x"}, 1, `unexpected argument "x": want flags alone`},
		{[]string{"members", "-o", "yaml"}, 1, `invalid argument "yaml" for "-o, --output" flag: want text or json`},
		{[]string{"members", "--admin", "h"}, 1, `invalid argument "h" for "--admin" flag: "h" is not an address: want host:port or :port, port 0 to 65535`},
		{[]string{"health", "--addr", "h"}, 1, `invalid argument "h" for "--addr" flag: "h" is not an address: want host:port or :port, port 0 to 65535`},
		{[]string{"check"}, 2, "0 arguments: want one, the key"},
		{[]string{"check", "a", "b"}, 2, "2 arguments: want one, the key"},
		{[]string{"check", "a", "--nope"}, 2, "unknown flag: --nope"},
		{[]string{"check", "a", "--cost", "x"}, 2, `invalid argument "x" for "--cost" flag: `},
		{[]string{"check", "a", "-o", ""}, 2, `invalid argument "" for "-o, --output" flag: want text or json`},
		{[]string{"check", "a\xff"}, 2, "limit and key must be valid UTF-8"},
		{[]string{"cluster", "x"}, 1, `unexpected argument "x": want flags alone`},
		{[]string{"cluster", "--nodes", "0"}, 1, "--nodes: 0 is out of range: want 1 to 100"},
		{[]string{"nope"}, 1, `unknown command "nope" for "tokenring"`},
	} {
		var out, errs bytes.Buffer
		code := run(t.Context(), c.args, &out, &errs)
		got := errs.String()
		if code != c.code || out.Len() > 0 || !strings.HasPrefix(got, "tokenring: "+c.want) || strings.Count(got, "\n") != 1 {
			t.Errorf("%q: exit code %d, output %q, want %d and %q", c.args, code, got, c.code, c.want)
		}
	}
}
