package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/spf13/cobra"
)

func newHealth() *cobra.Command {
	addr := address{"127.0.0.1:8080"}
	c := &cobra.Command{
		Use:   "health",
		Short: "Ask a node whether it is ready: exit code 0 if it is, else 1",
		Args:  noArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := ready(c.Context(), addr.addr); err != nil {
				return err
			}
			fmt.Fprintln(c.OutOrStdout(), "ready")
			return nil
		},
	}
	c.Flags().Var(&addr, "addr", "HTTP address of the node")
	return c
}

// ready returns nil once the node takes checks, or why it does not.
func ready(ctx context.Context, addr string) error {
	status, answer, err := ask(ctx, addr, "/readyz", nil)
	switch {
	case err != nil:
		return err
	case status == http.StatusOK:
		return nil
	case len(answer) == 0:
		return errors.New("not ready: " + http.StatusText(status))
	}
	return fmt.Errorf("not ready: %.200s", answer)
}
