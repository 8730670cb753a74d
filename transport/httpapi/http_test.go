package httpapi

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tokenring/tokenring/bucket"
	"github.com/tokenring/tokenring/node"
	"github.com/tokenring/tokenring/transport/identity"
)

// A limiter answers by the name of the limit and keeps what it was asked.
type limiter struct {
	mu     sync.Mutex
	calls  [][]node.Check
	answer func(node.Check) node.Answer
}

func (l *limiter) Check(_ context.Context, checks []node.Check, answers []node.Answer) {
	l.mu.Lock()
	l.calls = append(l.calls, slices.Clone(checks))
	l.mu.Unlock()
	for i, c := range checks {
		if answers[i] != (node.Answer{}) {
			panic("the answers of another request")
		}
		answers[i] = l.answer(c)
	}
}

// checks returns all that was asked.
func (l *limiter) checks() []node.Check {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Concat(l.calls...)
}

// byName allows everything but for limits with certain names.
func byName(c node.Check) node.Answer {
	a := node.Answer{Limit: c.Limit, Key: c.Key, Node: "node-2", FillTime: 12*time.Second - 1}
	a.Decision = bucket.Decision{Allowed: true, Burst: 20, Remaining: 19, ResetAfter: 600*time.Millisecond - 1}
	switch {
	case c.Inline:
		a.Limit, a.Burst, a.FillTime = node.InlineLimit, c.Rule.Burst(), c.Rule.FillTime()
	case c.Limit == "":
		a.Limit = node.DefaultLimit
	case c.Limit == "apo":
		return node.Answer{Err: &node.UnknownLimitError{Name: "apo"}}
	case c.Limit == "denied":
		a.Decision = bucket.Decision{Burst: 20, RetryAfter: time.Second + 1, ResetAfter: 12 * time.Second}
	case c.Limit == "soon":
		a.Decision = bucket.Decision{Burst: 20, RetryAfter: 1, ResetAfter: 12 * time.Second}
	case c.Limit == "never":
		a.Decision = bucket.Decision{Burst: 20, Remaining: 3, RetryAfter: bucket.Never, ResetAfter: bucket.Never}
		a.FillTime = bucket.Never
	case c.Limit == "banned":
		a.FillTime = 0
	case c.Limit == "partners":
		a.Unlimited = true
	case c.Limit == "lost":
		a.Degraded = true
	case c.Limit == "lost-denied":
		a.Degraded, a.Allowed = true, false
	case c.Limit == "huge":
		a.Decision = bucket.Decision{Allowed: true, Burst: 1 << 60, Remaining: 1 << 59, ResetAfter: 1 << 62}
	}
	return a
}

func prefixes(t testing.TB, s string) []netip.Prefix {
	t.Helper()
	p, err := identity.ParsePrefixes(s)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// start runs a server on a free port. Callers on loopback are trusted, and it is a proxy.
func start(t testing.TB, c Config) (s *Server, addr string) {
	t.Helper()
	if c.Limiter == nil {
		c.Limiter = &limiter{answer: byName}
	}
	if c.Identity == nil {
		loopback := prefixes(t, "127.0.0.0/8")
		c.Identity = identity.New(identity.Config{TrustedProxies: loopback, TrustedCallers: loopback})
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s = New(c)
	s.Start(ln)
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = s.Close(ctx) // hard: what a test wants to see of closing, it looks at itself
	})
	return s, ln.Addr().String()
}

// A client has one connection to a server.
type client struct {
	t testing.TB
	net.Conn
	r *bufio.Reader
}

func dial(t testing.TB, addr string) *client {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	return &client{t, c, bufio.NewReader(c)}
}

func (c *client) send(raw string) {
	c.t.Helper()
	if _, err := io.WriteString(c.Conn, raw); err != nil {
		c.t.Fatalf("send: %v", err)
	}
}

type answer struct {
	*http.Response
	body string
}

// receive reads a reply to a request with the given method.
func (c *client) receive(method string) answer {
	c.t.Helper()
	res, err := http.ReadResponse(c.r, &http.Request{Method: method})
	if err != nil {
		c.t.Fatalf("receive: %v", err)
	}
	body, err := io.ReadAll(res.Body)
	if err != nil {
		c.t.Fatalf("receive body: %v", err)
	}
	return answer{res, string(body)}
}

// ended waits until the server ends the connection, and fails if it says anything more.
func (c *client) ended() {
	c.t.Helper()
	if rest, err := io.ReadAll(c.r); err != nil || len(rest) > 0 {
		c.t.Errorf("behind the reply: %q, %v", rest, err)
	}
}

func get(target string, headers ...string) string {
	return raw("GET", target, "", headers...)
}

func post(target, body string, headers ...string) string {
	return raw("POST", target, body, headers...)
}

func raw(method, target, body string, headers ...string) string {
	var b strings.Builder
	b.WriteString(method + " " + target + " HTTP/1.1\r\nHost: tokenring\r\n")
	for _, h := range headers {
		b.WriteString(h + "\r\n")
	}
	if body != "" || method == "POST" {
		b.WriteString("Content-Length: " + strconv.Itoa(len(body)) + "\r\n")
	}
	return b.String() + "\r\n" + body
}

// wantError compares a reply with an error.
func (a answer) wantError(t *testing.T, name string, status int, code, message string) {
	t.Helper()
	want := `{"error":{"code":"` + code + `","message":` + strconv.Quote(message) + "}}\n"
	if a.StatusCode != status || a.body != want {
		t.Errorf("%s: %d %s, want %d %s", name, a.StatusCode, a.body, status, want)
	}
	if ct := a.Header.Get("Content-Type"); ct != "application/json" {
		t.Errorf("%s: Content-Type %q", name, ct)
	}
}
