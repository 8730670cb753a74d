// Command tokenring is a rate limiter that runs as a cluster of nodes: serve runs one of
// them, cluster a few on this machine, the other commands ask a running one.
//
// It is the only place that reads flags, environment and files, and that ends the process.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// A second signal ends the process at once.
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run carries out a command line and returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	code := 1
	if e, ok := errors.AsType[*exitError](err); ok {
		code, err = e.code, e.err
	}
	if err != nil {
		fmt.Fprintln(stderr, "tokenring: "+strings.TrimSpace(err.Error()))
	}
	return code
}

// An exitError ends the command with a code other than 1. Without an err inside nothing
// is left to be said.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return fmt.Sprintf("exit code %d: %v", e.code, e.err) }
func (e *exitError) Unwrap() error { return e.err }

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:               "tokenring",
		Short:             "A rate limiter that runs as a cluster of nodes",
		SilenceErrors:     true,
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
	}
	root.AddCommand(newServe(), newCluster(), newCheck(), newHealth(), newMembers(), newRing(), newBench(), newVersion())
	return root
}

// noArguments is for commands that take flags alone.
func noArguments(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("unexpected argument %q: want flags alone", args[0])
	}
	return nil
}
