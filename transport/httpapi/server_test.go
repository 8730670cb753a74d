package httpapi

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/tokenring/tokenring/node"

	"github.com/tokenring/tokenring/test/wait"
)

// A gate is a limiter that waits, for its context too.
type gate struct {
	entered chan struct{}
	open    chan struct{}
}

func newGate() *gate { return &gate{make(chan struct{}, 100), make(chan struct{})} }

func (g *gate) Check(ctx context.Context, checks []node.Check, answers []node.Answer) {
	g.entered <- struct{}{}
	select {
	case <-g.open:
	case <-ctx.Done():
	}
	for i, c := range checks {
		answers[i] = byName(c)
	}
}

func TestHealth(t *testing.T) {
	var reason atomic.Pointer[string]
	reason.Store(new(`joining: "a"`))
	_, addr := start(t, Config{Ready: func() string { return *reason.Load() }})
	conn := dial(t, addr)
	for _, c := range []struct {
		reason, target string
		status         int
		want           string
	}{
		{`joining: "a"`, "/healthz", 200, `{"status":"ok"}`},
		{`joining: "a"`, "/readyz", 503, `{"status":"not ready","reason":"joining: \"a\""}`},
		{"", "/readyz?verbose", 200, `{"status":"ready"}`},
		{"leaving", "/readyz", 503, `{"status":"not ready","reason":"leaving"}`},
	} {
		reason.Store(&c.reason)
		conn.send(get(c.target))
		res := conn.receive("GET")
		if res.StatusCode != c.status || res.body != c.want+"\n" || res.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s while %q: %d %s, want %d %s", c.target, c.reason, res.StatusCode, res.body, c.status, c.want)
		}
	}

	_, addr = start(t, Config{})
	conn = dial(t, addr)
	conn.send(get("/readyz"))
	if res := conn.receive("GET"); res.StatusCode != 200 {
		t.Errorf("not ready without Ready: %d %s", res.StatusCode, res.body)
	}
}

// Requests that were sent without waiting are answered in order, wrong ones too.
func TestPipelining(t *testing.T) {
	_, addr := start(t, Config{})
	conn := dial(t, addr)
	conn.send(get("/v1/check?limit=a") + post("/v1/check", `{"limit":"denied"}`) + post("/v1/check", `{`) +
		raw("PUT", "/v1/check", "{}") + get("/nothing") + post("/v1/checks", `{"checks":[{"key":"k"}]}`) + get("/v1/check?limit=b", "Connection: close"))
	for i, want := range []string{`"limit":"a"`, `"limit":"denied"`, "malformed", "want GET, HEAD, POST", "/nothing", `"key":"k"`, `"limit":"b"`} {
		if res := conn.receive("GET"); !strings.Contains(res.body, want) {
			t.Errorf("reply %d is %s, want %s in it", i, res.body, want)
		}
	}
	conn.ended()
}

func TestOldHTTP(t *testing.T) {
	_, addr := start(t, Config{})
	conn := dial(t, addr)
	conn.send("GET /v1/check?limit=api HTTP/1.0\r\n\r\n")
	if res := conn.receive("GET"); res.StatusCode != 200 || !strings.Contains(res.body, `"limit":"api"`) {
		t.Errorf("%d %s", res.StatusCode, res.body)
	}
	conn.ended()
}

func TestSlowClient(t *testing.T) {
	_, addr := start(t, Config{ReadTimeout: 50 * time.Millisecond})
	for name, sent := range map[string]string{
		"nothing":          "",
		"half the headers": "POST /v1/check HTTP/1.1\r\nHos",
		"half the body":    "POST /v1/check HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n{",
		"half a chunk":     "POST /v1/check HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{",
		"no trailers":      "POST /v1/check HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n",
	} {
		conn := dial(t, addr)
		conn.send(sent)
		conn.receive("POST").wantError(t, name, 408, "invalid_argument", "the request did not arrive within 50ms")
		conn.ended()
	}
}

func TestIdleClient(t *testing.T) {
	_, addr := start(t, Config{IdleTimeout: 50 * time.Millisecond})
	conn := dial(t, addr)
	conn.send(get("/healthz"))
	if res := conn.receive("GET"); res.StatusCode != 200 {
		t.Errorf("%d %s", res.StatusCode, res.body)
	}
	conn.ended()
}

// A mistake in the program costs one request and its connection.
func TestPanic(t *testing.T) {
	s, addr := start(t, Config{Limiter: &limiter{answer: func(node.Check) node.Answer { panic("mistake") }}})
	conn := dial(t, addr)
	conn.send(get("/v1/check"))
	res := conn.receive("GET")
	res.wantError(t, "panic", 500, "internal", "a mistake in the program, see its log")
	conn.ended()
	conn = dial(t, addr)
	conn.send(get("/healthz"))
	if res := conn.receive("GET"); res.StatusCode != 200 {
		t.Errorf("then %d %s", res.StatusCode, res.body)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestCloseAnswersWhatIsOpen(t *testing.T) {
	g := newGate()
	s, addr := start(t, Config{Limiter: g})
	idle, busy := dial(t, addr), dial(t, addr)
	idle.send(get("/healthz"))
	idle.receive("GET")
	busy.send(get("/v1/check?limit=api"))
	<-g.entered

	closed := make(chan error, 2)
	for range 2 {
		go func() { closed <- s.Close(context.Background()) }()
	}
	idle.ended()
	if _, err := net.Dial("tcp", addr); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("dialing a server that is being closed: %v", err)
	}
	select {
	case err := <-closed:
		t.Fatalf("closed, %v, with an open request", err)
	default:
	}
	close(g.open)
	res := busy.receive("GET")
	if res.StatusCode != 200 || !res.Close || !strings.Contains(res.body, `"limit":"api"`) {
		t.Errorf("%d, close is %v, %s", res.StatusCode, res.Close, res.body)
	}
	busy.ended()
	for range 2 {
		if err := <-closed; err != nil {
			t.Error(err)
		}
	}
	if err := s.Close(t.Context()); err != nil {
		t.Errorf("closed again: %v", err)
	}
}

func TestCloseGivesUp(t *testing.T) {
	g := newGate()
	s, addr := start(t, Config{Limiter: g})
	busy, fresh := dial(t, addr), dial(t, addr)
	busy.send(get("/v1/check"))
	<-g.entered
	ctx, cancel := context.WithCancelCause(t.Context())
	gaveUp := errors.New("no more patience")
	cancel(gaveUp)
	if err := s.Close(ctx); !errors.Is(err, gaveUp) {
		t.Errorf("error %v", err)
	}
	for name, conn := range map[string]*client{"busy": busy, "fresh": fresh} {
		if got, err := io.ReadAll(conn.r); len(got) > 0 {
			t.Errorf("the %s client read %q, %v", name, got, err)
		}
	}
}

func TestCloseBeforeStart(t *testing.T) {
	s := New(Config{})
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.Start(ln)
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := ln.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the listener is still open: %v", err)
	}
}

// A flaky listener fails a few times before each connection.
type flaky struct {
	net.Listener
	failures, accepts atomic.Int32
}

func (f *flaky) Accept() (net.Conn, error) {
	if f.failures.Add(-1) >= 0 {
		return nil, syscall.EMFILE
	}
	f.accepts.Add(1)
	return f.Listener.Accept()
}

func TestAcceptGoesOn(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &flaky{Listener: ln}
	f.failures.Store(3)
	s := New(Config{})
	s.Start(f)
	for i := range int32(2) {
		conn := dial(t, ln.Addr().String())
		conn.send(get("/healthz", "Connection: close"))
		if res := conn.receive("GET"); res.StatusCode != 200 {
			t.Errorf("%d %s", res.StatusCode, res.body)
		}
		if i == 0 {
			wait.For(t, 30*time.Second, "the server to accept the next one", func() bool { return f.accepts.Load() == 2 })
		}
		// After that one it cannot accept, and closing must end the wait for better times.
		f.failures.Store(1 << 30)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
