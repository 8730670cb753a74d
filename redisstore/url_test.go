package redisstore

import (
	"slices"
	"strings"
	"testing"
)

func TestParseURL(t *testing.T) {
	tests := []struct {
		url  string
		want []address // without TLS settings
		tls  bool
	}{
		{"redis://host", []address{{network: "tcp", addr: "host:6379"}}, false},
		{"redis://host:1234/", []address{{network: "tcp", addr: "host:1234"}}, false},
		{"redis://[::1]", []address{{network: "tcp", addr: "[::1]:6379"}}, false},
		{"redis://[::1]:7000/15", []address{{network: "tcp", addr: "[::1]:7000", db: 15}}, false},
		{"redis://user:p%40ss%2C@host", []address{{network: "tcp", addr: "host:6379", user: "user", password: "p@ss,"}}, false},
		{"redis://:pass@host", []address{{network: "tcp", addr: "host:6379", password: "pass"}}, false},
		{"rediss://host:6380", []address{{network: "tcp", addr: "host:6380"}}, true},
		{"unix:///run/redis.sock", []address{{network: "unix", addr: "/run/redis.sock"}}, false},
		{"unix://u:p@/run/redis.sock?db=2", []address{{network: "unix", addr: "/run/redis.sock", user: "u", password: "p", db: 2}}, false},
		{"redis://a, redis://b:1,redis://a/1", []address{
			{network: "tcp", addr: "a:6379"}, {network: "tcp", addr: "b:1"}, {network: "tcp", addr: "a:6379", db: 1},
		}, false},
	}
	for _, tt := range tests {
		t.Run(tt.url, func(t *testing.T) {
			got, err := parseURL(tt.url)
			if err != nil {
				t.Fatal(err)
			}
			for i := range got.servers {
				if secure := got.servers[i].tls != nil; secure != tt.tls {
					t.Errorf("TLS is %v, want %v", secure, tt.tls)
				}
				got.servers[i].tls = nil
			}
			if !slices.Equal(got.servers, tt.want) || got.cluster != nil {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

func TestParseClusterURL(t *testing.T) {
	got, err := parseURL("redis+cluster://u:p@a:7000,b, [::1]:7002")
	if err != nil {
		t.Fatal(err)
	}
	c := got.cluster
	if c == nil || !slices.Equal(c.hosts, []string{"a:7000", "b:6379", "[::1]:7002"}) {
		t.Fatalf("got %+v", got)
	}
	if c.user != "u" || c.password != "p" || c.tls != nil {
		t.Errorf("got %+v", c.address)
	}
	got, err = parseURL("rediss+cluster://a")
	if err != nil || got.cluster == nil || got.cluster.tls == nil {
		t.Errorf("got %+v, %v: want a cluster with TLS", got, err)
	}
}

func TestWrongURL(t *testing.T) {
	tests := []struct{ url, want string }{
		{"", "is empty"},
		{"localhost:6379", "has no scheme"},
		{"redis:localhost", "has no scheme"},
		{"http://host", `scheme "http" is not supported`},
		{"redis://", "has no host"},
		{"redis://:6379", "has no host"},
		{"redis://host:0", "port"},
		{"redis://host:65536", "port"},
		{"redis://host:", "port"},
		{"redis://host/x", "database must be a number"},
		{"redis://host/-1", "database must be a number"},
		{"redis://host/1/2", "database must be a number"},
		{"redis://host?pool_size=3", "parameters are not supported"},
		{"redis://host#x", "is no URL"},
		{"redis://u:s3cret#@host", "is no URL"},
		{"redis://u:s3cret/@host", "is no URL"},
		{"redis://u:s3%zzcret@host", "is no URL"},
		{"redis://u:s3cret @host", "is no URL"},
		{"redis://host:s3cret", "is no URL"},
		{"redis://u:s3,cret@host", "is no URL"},
		{"redis://a,redis://u:s3%zzcret@b", "address 2: it is no URL"},
		{"redis://a,", "address 2: it is empty"},
		{"redis://a:6379,b:6379", "address 2: it has no scheme"},
		{"redis://a,redis://a:6379", "a:6379 is named twice"},
		{"redis://a,redis+cluster://b", "cannot be one of several"},
		{"unix://", "absolute path"},
		{"unix://run/redis.sock", "absolute path"},
		{"unix:///r.sock?database=1", "no parameter but db"},
		{"redis+cluster://", "has no host"},
		{"redis+cluster://a,", "address 2: it has no host"},
		{"redis+cluster://a/1", "no databases"},
		{"redis+cluster://a,u:s3cret@b", "belong to the first address"},
		{"redis+cluster://u:s3%zzcret@b", "address 1: it is no URL"},
		{"redis+cluster://a,redis+cluster://b", "port"},
	}
	for _, tt := range tests {
		t.Run(tt.url, func(t *testing.T) {
			_, err := New(Config{URL: tt.url})
			if err == nil {
				t.Fatal("got no error")
			}
			if !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "allowed are redis://") {
				t.Errorf("got %q, want it to contain %q and what is allowed", err, tt.want)
			}
			if strings.Contains(err.Error(), "s3") || strings.Contains(err.Error(), "cret") {
				t.Errorf("%q holds the password", err)
			}
		})
	}
}
