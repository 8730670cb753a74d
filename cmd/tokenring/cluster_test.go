package main

import (
	"slices"
	"strings"
	"testing"
)

func TestPlanCluster(t *testing.T) {
	got, err := planCluster(3, 8080, 7946, []string{"--limits", "l.yaml"})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"serve --id node-1 --http 127.0.0.1:8080 --grpc 127.0.0.1:8081 --admin 127.0.0.1:8082 --gossip 127.0.0.1:7946 --peer 127.0.0.1:7947 --join 127.0.0.1:7956,127.0.0.1:7966 --limits l.yaml",
		"serve --id node-2 --http 127.0.0.1:8090 --grpc 127.0.0.1:8091 --admin 127.0.0.1:8092 --gossip 127.0.0.1:7956 --peer 127.0.0.1:7957 --join 127.0.0.1:7946,127.0.0.1:7966 --limits l.yaml",
		"serve --id node-3 --http 127.0.0.1:8100 --grpc 127.0.0.1:8101 --admin 127.0.0.1:8102 --gossip 127.0.0.1:7966 --peer 127.0.0.1:7967 --join 127.0.0.1:7946,127.0.0.1:7956 --limits l.yaml",
	}
	for i, n := range got {
		if args := strings.Join(n.args, " "); args != want[i] {
			t.Errorf("node %d\n%s\nwant\n%s", i+1, args, want[i])
		}
		if _, err := loadFrom(t, n.args[1:len(n.args)-2], nil); err != nil {
			t.Errorf("node %d does not take its settings: %v", i+1, err)
		}
	}
	if alone, err := planCluster(1, 1, 5, nil); err != nil || slices.Contains(alone[0].args, "--join") {
		t.Errorf("a node alone: %+v, %v", alone, err)
	}
	if all, err := planCluster(100, 8080, 7946, nil); err != nil || all[99].peer != "127.0.0.1:8937" {
		t.Errorf("100 nodes: %v", err)
	}
}

func TestPlanClusterErrors(t *testing.T) {
	for _, c := range []struct {
		nodes, base, gossip int
		want                string
	}{
		{0, 8080, 7946, "--nodes: 0 is out of range: want 1 to 100"},
		{101, 8080, 7946, "--nodes: 101 is out of range: want 1 to 100"},
		{-1, 8080, 7946, "--nodes: -1 is out of range: want 1 to 100"},
		{3, 0, 7946, "--base-port: 0 is out of range: want 1 to 65513 for 3 nodes"},
		{3, 65514, 7946, "--base-port: 65514 is out of range: want 1 to 65513 for 3 nodes"},
		{3, 8080, -5, "--gossip-base-port: -5 is out of range: want 1 to 65514 for 3 nodes"},
		{3, 8080, 65515, "--gossip-base-port: 65515 is out of range: want 1 to 65514 for 3 nodes"},
		{1, 8080, 8079, "--gossip-base-port: 127.0.0.1:8080 would be used by node-1 and node-1: want one further from --base-port"},
		{3, 8080, 8070, "--gossip-base-port: 127.0.0.1:8080 would be used by node-1 and node-2: want one further from --base-port"},
		{3, 8080, 8102, "--gossip-base-port: 127.0.0.1:8102 would be used by node-1 and node-3: want one further from --base-port"},
	} {
		if _, err := planCluster(c.nodes, c.base, c.gossip, nil); message(err) != c.want {
			t.Errorf("%+v: error %v", c, err)
		}
	}
	if _, err := planCluster(3, 65513, 65506, nil); err != nil {
		t.Errorf("the highest ports: %v", err)
	}
}

func TestExtraFlags(t *testing.T) {
	for _, c := range []struct {
		dash      int
		args      []string
		want      string // arguments
		wantError string
	}{
		{-1, nil, "--drain 0s", ""},
		{0, nil, "--drain 0s", ""},
		{0, []string{"--limits=l.yaml", "--trust-client-id"}, "--drain 0s --limits=l.yaml --trust-client-id", ""},
		{0, []string{"--replicas", "0", "--drain", "2s"}, "--replicas 0 --drain 2s", ""},
		{-1, []string{"x"}, "", `unexpected argument "x": want flags alone`},
		{1, []string{"x", "--replicas=0"}, "", `unexpected argument "x": want flags alone`},
		{0, []string{"x"}, "", `after --: unexpected argument "x": want flags alone`},
		{0, []string{"--nope"}, "", `after --: unknown flag: --nope`},
		{0, []string{"--limits"}, "", `after --: flag needs an argument: --limits`},
		{0, []string{"-h"}, "", `--help after --: want settings, which tokenring serve --help lists`},
		{0, []string{"--id=a"}, "", `--id after --: every node gets its own`},
		{0, []string{"--http", ":1"}, "", `--http after --: every node gets its own`},
		{0, []string{"--join", "a:1"}, "", `--join after --: every node gets its own`},
	} {
		got, err := extraFlags(c.dash, c.args)
		if strings.Join(got, " ") != c.want || message(err) != c.wantError {
			t.Errorf("%d %q: %q, error %v", c.dash, c.args, got, err)
		}
	}
}
