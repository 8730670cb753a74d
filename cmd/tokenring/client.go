package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/spf13/cobra"
)

const (
	askTimeout = 10 * time.Second // for a whole request to a node
	mostAnswer = 16 << 20         // bytes
)

// asker sends requests to a node, never by way of a proxy.
var asker = &http.Client{Timeout: askTimeout, Transport: &http.Transport{DisableKeepAlives: true}}

// ask sends a request to a node and returns the status and body of its answer. A nil body
// is a GET, any other a POST of JSON.
func ask(ctx context.Context, addr, path string, body []byte) (int, []byte, error) {
	method := http.MethodGet
	if body != nil {
		method = http.MethodPost
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://"+addr+path, bytes.NewReader(body))
	if err != nil {
		return 0, nil, fmt.Errorf("make request: %w", err)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := asker.Do(req)
	if err != nil {
		return 0, nil, fmt.Errorf("ask node: %w", err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, mostAnswer))
	if err != nil {
		return 0, nil, fmt.Errorf("read answer of %s: %w", addr, err)
	}
	return resp.StatusCode, bytes.TrimSpace(answer), nil
}

// refusal is the error of an answer that is none of the expected ones.
func refusal(addr string, status int, answer []byte) error {
	var body struct {
		Error struct{ Code, Message string }
	}
	if json.Unmarshal(answer, &body) == nil && body.Error.Message != "" {
		return fmt.Errorf("%s: %s", body.Error.Code, body.Error.Message)
	}
	return fmt.Errorf("%s does not answer as a node does: status %d: %.100q", addr, status, answer)
}

// address is the value of a flag that names a node.
type address struct{ addr string }

func (a *address) String() string     { return a.addr }
func (a *address) Type() string       { return "address" }
func (a *address) Set(s string) error { return setListen(&a.addr, s) }

// output is the value of --output.
type output struct{ json bool }

func (o *output) String() string {
	if o.json {
		return "json"
	}
	return "text"
}

func (o *output) Type() string { return "format" }

func (o *output) Set(s string) error {
	if s != "text" && s != "json" {
		return errors.New("want text or json")
	}
	o.json = s == "json"
	return nil
}

func (o *output) addFlag(c *cobra.Command) {
	c.Flags().VarP(o, "output", "o", "format of the answer: text or json")
}
