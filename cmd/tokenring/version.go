package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version may be set when linking, with -X main.version=v1.2.3.
var version string

// A build says what the binary was made from.
type build struct{ Version, Commit, Go string }

// buildInfo returns what is known; what is not is "unknown".
func buildInfo() build {
	b := build{Version: version, Commit: "unknown", Go: runtime.Version()}
	info, ok := debug.ReadBuildInfo()
	if ok && b.Version == "" && info.Main.Version != "" {
		b.Version = info.Main.Version
	}
	if b.Version == "" {
		b.Version = "unknown"
	}
	if !ok {
		return b
	}
	modified := false
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Commit = s.Value
		case "vcs.modified":
			modified = s.Value == "true"
		}
	}
	if modified {
		b.Commit += "-modified"
	}
	return b
}

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print version, commit and Go version",
		Args:  noArguments,
		Run: func(c *cobra.Command, _ []string) {
			b := buildInfo()
			fmt.Fprintf(c.OutOrStdout(), "tokenring %s, commit %s, %s\n", b.Version, b.Commit, b.Go)
		},
	}
}
