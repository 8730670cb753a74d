package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

const (
	mostNodes = 100
	portStep  = 10 // between the ports of a node and those of the next
)

// A localNode is one node of a cluster on this machine.
type localNode struct {
	id                              string
	http, grpc, admin, gossip, peer string // addresses
	args                            []string
}

func newCluster() *cobra.Command {
	var nodes, basePort, gossipBase int
	c := &cobra.Command{
		Use:   "cluster [flags] [-- flags of serve]",
		Short: "Run a few nodes on this machine",
		Long: `Run a few nodes on this machine, each a process of its own that has all the others as
seeds. Flags after -- go to every node. Their logs come out here, each line behind the id
of its node. The first Ctrl-C stops all nodes cleanly, the second at once.`,
		RunE: func(c *cobra.Command, args []string) error {
			extra, err := extraFlags(c.Flags().ArgsLenAtDash(), args)
			if err != nil {
				return err
			}
			local, err := planCluster(nodes, basePort, gossipBase, extra)
			if err != nil {
				return err
			}
			exe, err := os.Executable()
			if err != nil {
				return fmt.Errorf("find own executable: %w", err)
			}
			cl := localCluster{exe: exe, nodes: local, stdout: c.OutOrStdout(), stderr: c.ErrOrStderr()}
			return cl.run(c.Context())
		},
	}
	c.Flags().IntVar(&nodes, "nodes", 3, "`number` of nodes")
	c.Flags().IntVar(&basePort, "base-port", 8080, "HTTP `port` of the first node; gRPC and admin are the next two, those of the next node 10 higher")
	c.Flags().IntVar(&gossipBase, "gossip-base-port", 7946, "gossip `port` of the first node; the peer port is the next")
	return c
}

// perNode are the flags of serve that differ from node to node.
var perNode = []string{"id", "http", "grpc", "admin", "gossip", "peer", "join"}

// extraFlags returns the arguments after the dashes, once it is sure that serve takes them.
func extraFlags(dash int, args []string) ([]string, error) {
	if dash < 0 {
		dash = len(args)
	}
	if dash > 0 {
		return nil, noArguments(nil, args[:dash])
	}
	flags := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	flags.Usage = func() {}
	addFlags(flags)
	if err := flags.Parse(args); errors.Is(err, pflag.ErrHelp) {
		return nil, errors.New("--help after --: want settings, which tokenring serve --help lists")
	} else if err != nil {
		return nil, fmt.Errorf("after --: %w", err)
	}
	if flags.NArg() > 0 {
		return nil, fmt.Errorf("after --: %w", noArguments(nil, flags.Args()))
	}
	for _, name := range perNode {
		if flags.Changed(name) {
			return nil, fmt.Errorf("--%s after --: every node gets its own", name)
		}
	}
	if !flags.Changed("drain") {
		// No load balancer sends to these nodes.
		args = append([]string{"--drain", "0s"}, args...)
	}
	return args, nil
}

// planCluster returns the nodes, or why they cannot be.
func planCluster(nodes, basePort, gossipBase int, extra []string) ([]localNode, error) {
	if nodes < 1 || nodes > mostNodes {
		return nil, fmt.Errorf("--nodes: %d is out of range: want 1 to %d", nodes, mostNodes)
	}
	above := portStep * (nodes - 1)
	if most := 65535 - 2 - above; basePort < 1 || basePort > most {
		return nil, fmt.Errorf("--base-port: %d is out of range: want 1 to %d for %d nodes", basePort, most, nodes)
	}
	if most := 65535 - 1 - above; gossipBase < 1 || gossipBase > most {
		return nil, fmt.Errorf("--gossip-base-port: %d is out of range: want 1 to %d for %d nodes", gossipBase, most, nodes)
	}
	local := make([]localNode, nodes)
	users := map[string]string{}
	for i := range local {
		n := &local[i]
		n.id = fmt.Sprintf("node-%d", i+1)
		n.http, n.grpc, n.admin = loopback(basePort, i), loopback(basePort+1, i), loopback(basePort+2, i)
		n.gossip, n.peer = loopback(gossipBase, i), loopback(gossipBase+1, i)
		for _, addr := range []string{n.http, n.grpc, n.admin, n.gossip, n.peer} {
			if other, taken := users[addr]; taken {
				return nil, fmt.Errorf("--gossip-base-port: %s would be used by %s and %s: want one further from --base-port", addr, other, n.id)
			}
			users[addr] = n.id
		}
	}
	for i := range local {
		local[i].args = serveArgs(local, i, extra)
	}
	return local, nil
}

func loopback(base, i int) string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(base+portStep*i))
}

// serveArgs is the command line of node i: all others are its seeds.
func serveArgs(local []localNode, i int, extra []string) []string {
	n := local[i]
	args := []string{
		"serve", "--id", n.id, "--http", n.http, "--grpc", n.grpc, "--admin", n.admin, "--gossip", n.gossip, "--peer", n.peer,
	}
	var seeds []string
	for _, other := range slices.Concat(local[:i], local[i+1:]) {
		seeds = append(seeds, other.gossip)
	}
	if len(seeds) > 0 {
		args = append(args, "--join", strings.Join(seeds, ","))
	}
	return append(args, extra...)
}
