package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
)

const (
	codeDenied = 1
	codeFailed = 2 // since 1 is an answer
)

// A checkRequest is one check as a node takes it.
type checkRequest struct {
	Limit string `json:"limit,omitempty"`
	Key   string `json:"key"`
	Cost  int64  `json:"cost"`
}

// A checkAnswer is what a node says to a check.
type checkAnswer struct {
	Allowed    *bool  `json:"allowed"`
	Limit      string `json:"limit"`
	Burst      int64  `json:"burst"`
	Remaining  int64  `json:"remaining"`
	RetryAfter int64  `json:"retry_after_ms"`
	ResetAfter int64  `json:"reset_after_ms"`
	Degraded   bool   `json:"degraded"`
	Node       string `json:"node"`
}

func newCheck() *cobra.Command {
	var (
		addr    = address{"127.0.0.1:8080"}
		request checkRequest
		out     output
	)
	c := &cobra.Command{
		Use:   "check KEY",
		Short: "Ask a node for one check: exit code 0 is allowed, 1 denied, 2 an error",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return &exitError{codeFailed, fmt.Errorf("%d arguments: want one, the key", len(args))}
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			request.Key = args[0]
			allowed, err := check(c.Context(), c.OutOrStdout(), addr.addr, request, out)
			switch {
			case err != nil:
				return &exitError{codeFailed, err}
			case !allowed:
				return &exitError{code: codeDenied}
			}
			return nil
		},
	}
	c.Flags().Var(&addr, "addr", "HTTP address of a node")
	c.Flags().StringVar(&request.Limit, "limit", "", "`name` of the limit (default \"default\")")
	c.Flags().Int64Var(&request.Cost, "cost", 1, "`tokens` to take: 0 looks, below 0 gives back")
	out.addFlag(c)
	c.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &exitError{codeFailed, err} })
	return c
}

// check asks for one check, prints the answer and reports whether it was allowed.
func check(ctx context.Context, stdout io.Writer, addr string, request checkRequest, out output) (bool, error) {
	if !utf8.ValidString(request.Key) || !utf8.ValidString(request.Limit) {
		// JSON could not carry it: another key would be charged.
		return false, errors.New("limit and key must be valid UTF-8")
	}
	body, err := json.Marshal(request)
	if err != nil {
		return false, fmt.Errorf("encode check: %w", err)
	}
	status, answer, err := ask(ctx, addr, "/v1/check", body)
	if err != nil {
		return false, err
	}
	var a checkAnswer
	answered := status == http.StatusOK || status == http.StatusTooManyRequests
	if !answered || json.Unmarshal(answer, &a) != nil || a.Allowed == nil {
		return false, refusal(addr, status, answer)
	}
	if out.json {
		_, err = fmt.Fprintf(stdout, "%s\n", answer)
	} else {
		_, err = fmt.Fprintln(stdout, a)
	}
	if err != nil {
		return false, fmt.Errorf("print answer: %w", err)
	}
	return *a.Allowed, nil
}

// String says the answer in one line.
func (a checkAnswer) String() string {
	line := "denied"
	if *a.Allowed {
		line = "allowed"
	}
	switch {
	case a.Degraded:
		line += ", by the failure policy"
	case a.Burst < 0:
		line += ", unlimited"
	default:
		line += fmt.Sprintf(", %d of %d left", a.Remaining, a.Burst)
	}
	switch {
	case !*a.Allowed && a.RetryAfter < 0:
		line += ", never for this cost"
	case !*a.Allowed:
		line += fmt.Sprintf(", again in %v", milliseconds(a.RetryAfter))
	case a.ResetAfter > 0:
		line += fmt.Sprintf(", full in %v", milliseconds(a.ResetAfter))
	}
	return fmt.Sprintf("%s (limit %s, node %s)", line, a.Limit, a.Node)
}

func milliseconds(n int64) time.Duration { return time.Duration(n) * time.Millisecond }
