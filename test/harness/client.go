package harness

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"
)

// Check is a check as HTTP clients send it.
type Check struct {
	Limit string `json:"limit,omitempty"`
	Key   string `json:"key,omitempty"`
	Cost  *int64 `json:"cost,omitempty"`
	Rate  string `json:"rate,omitempty"`
	Burst *int64 `json:"burst,omitempty"`
}

// Answer is what they get.
type Answer struct {
	Allowed      bool   `json:"allowed"`
	Limit        string `json:"limit"`
	Key          string `json:"key"`
	Burst        int64  `json:"burst"`
	Remaining    int64  `json:"remaining"`
	RetryAfterMS int64  `json:"retry_after_ms"`
	ResetAfterMS int64  `json:"reset_after_ms"`
	Degraded     bool   `json:"degraded"`
	Node         string `json:"node"`
	Error        *Error `json:"error"`
}

// Error is what they get instead.
type Error struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// client keeps as many connections as a load test has callers.
var client = &http.Client{
	Timeout:   Slow,
	Transport: &http.Transport{DialContext: dial, MaxIdleConnsPerHost: 256, MaxIdleConns: 2048},
}

// Reply is an HTTP reply, read whole.
type Reply struct {
	Status int
	Header http.Header
	Body   []byte
}

// Do sends a request and reads the reply.
func Do(ctx context.Context, method, url string, body []byte, header http.Header) (Reply, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return Reply{}, err
	}
	if header != nil {
		req.Header = header
	}
	resp, err := client.Do(req)
	if err != nil {
		return Reply{}, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	return Reply{Status: resp.StatusCode, Header: resp.Header, Body: data}, err
}

// Check asks the node over HTTP. An error is one of the connection, or any status other
// than 200 and 429.
func (n *Node) Check(ctx context.Context, c Check) (Answer, error) {
	body, err := json.Marshal(c)
	if err != nil {
		return Answer{}, err
	}
	reply, err := Do(ctx, http.MethodPost, "http://"+n.HTTP+"/v1/check", body, nil)
	if err != nil {
		return Answer{}, err
	}
	var a Answer
	if err := json.Unmarshal(reply.Body, &a); err != nil {
		return Answer{}, fmt.Errorf("status %d with %q: %w", reply.Status, reply.Body, err)
	}
	if reply.Status != http.StatusOK && reply.Status != http.StatusTooManyRequests {
		return a, fmt.Errorf("status %d: %s", reply.Status, reply.Body)
	}
	return a, nil
}

// Ready reports whether the node calls itself ready.
func (n *Node) Ready() bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	reply, err := Do(ctx, http.MethodGet, "http://"+n.HTTP+"/readyz", nil, nil)
	return err == nil && reply.Status == http.StatusOK
}

// Member is one line of the list of members.
type Member struct {
	ID         string `json:"id"`
	State      string `json:"state"`
	Addr       string `json:"addr"`
	Partitions int    `json:"partitions"`
	Self       bool   `json:"self"`
}

// Members returns the members as the node lists them, nil if it does not answer.
func (n *Node) Members() []Member {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	reply, err := Do(ctx, http.MethodGet, "http://"+n.Admin+"/v1/members", nil, nil)
	if err != nil || reply.Status != http.StatusOK {
		return nil
	}
	var list struct{ Members []Member }
	if json.Unmarshal(reply.Body, &list) != nil {
		return nil
	}
	return list.Members
}

// Active returns the sorted ids that the node lists as active.
func (n *Node) Active() []string {
	var ids []string
	for _, m := range n.Members() {
		if m.State == "active" {
			ids = append(ids, m.ID)
		}
	}
	slices.Sort(ids)
	return ids
}

// State returns the state in which the node lists an id, "" if it does not.
func (n *Node) State(id string) string {
	for _, m := range n.Members() {
		if m.ID == id {
			return m.State
		}
	}
	return ""
}
