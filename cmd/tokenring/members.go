package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"text/tabwriter"

	"github.com/spf13/cobra"
)

func newMembers() *cobra.Command {
	return newLook("members", "List the members of the cluster as a node knows them", listMembers)
}

// newLook returns a command that shows what a node answers on its admin port.
func newLook(use, short string, show func(ctx context.Context, stdout io.Writer, addr string, out output) error) *cobra.Command {
	var (
		addr = address{"127.0.0.1:8082"}
		out  output
	)
	c := &cobra.Command{
		Use:   use,
		Short: short,
		Args:  noArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			return show(c.Context(), c.OutOrStdout(), addr.addr, out)
		},
	}
	c.Flags().Var(&addr, "admin", "admin address of a node")
	out.addFlag(c)
	return c
}

func listMembers(ctx context.Context, stdout io.Writer, addr string, out output) error {
	status, answer, err := ask(ctx, addr, "/v1/members", nil)
	if err != nil {
		return err
	}
	var body struct {
		Members []struct {
			ID         string
			State      string
			Addr       string
			Partitions int
			Self       bool
		}
	}
	if status != http.StatusOK || json.Unmarshal(answer, &body) != nil || body.Members == nil {
		return refusal(addr, status, answer)
	}
	if out.json {
		_, err = fmt.Fprintf(stdout, "%s\n", answer)
		return err
	}
	table := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "ID\tSTATE\tADDR\tPARTITIONS\tSELF")
	for _, m := range body.Members {
		self := ""
		if m.Self {
			self = "self"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%d\t%s\n", m.ID, m.State, m.Addr, m.Partitions, self)
	}
	return table.Flush()
}
