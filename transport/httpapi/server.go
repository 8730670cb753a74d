// Package httpapi is the check port: HTTP for clients, and the health of the node.
//
//	connection ─ fasthttp ─> exchange ─ route ─ decode ─ request.Check ─> Limiter
//	                          reply  <─ headers, JSON ─ request.NewFigures ─┘
//
// The library that speaks HTTP is known in server.go alone; the rest of the package turns
// the bytes of a request into a reply. A check costs a few microseconds in all, so the
// decoder and what appends the reply work in buffers that are used again.
package httpapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"runtime/debug"
	"sync"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/tokenring/tokenring/transport/identity"
	"github.com/tokenring/tokenring/transport/request"
)

// maxHeader bounds the request line and the headers, in bytes. Gateways send along what
// browsers sent them, cookies and tokens included.
const maxHeader = 16 << 10

// maxKept is the largest body, in bytes, whose memory is used again.
const maxKept = 16 << 10

// Config says how a Server is built. Zero values stand for the defaults.
type Config struct {
	Limiter  request.Limiter
	Identity *identity.Resolver
	// Ready says why the node is not ready, "" when it is. Without it, the node always is.
	Ready func() (reason string)

	ReadTimeout  time.Duration // for a whole request, from its first byte; 10 s
	WriteTimeout time.Duration // for a whole reply; 10 s
	IdleTimeout  time.Duration // between two requests; 2 min
	Logger       *slog.Logger
}

func (c Config) withDefaults() Config {
	c.ReadTimeout = cmp.Or(c.ReadTimeout, 10*time.Second)
	c.WriteTimeout = cmp.Or(c.WriteTimeout, 10*time.Second)
	c.IdleTimeout = cmp.Or(c.IdleTimeout, 2*time.Minute)
	if c.Identity == nil {
		c.Identity = identity.New(identity.Config{})
	}
	if c.Ready == nil {
		c.Ready = func() string { return "" }
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// Server answers checks over HTTP.
type Server struct {
	limiter  request.Limiter
	identity *identity.Resolver
	notReady func() string
	log      *slog.Logger

	http fasthttp.Server
	// ctx ends when the server does not wait for its open requests any longer: the library
	// has no context that ends with a request.
	ctx       context.Context
	cancel    context.CancelFunc
	exchanges sync.Pool
	conns     conns
	running   sync.WaitGroup // accepting, and one for each connection
}

// New returns a server. Start makes it listen.
func New(c Config) *Server {
	c = c.withDefaults()
	s := &Server{
		limiter:  c.Limiter,
		identity: c.Identity,
		notReady: c.Ready,
		log:      c.Logger,
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.exchanges.New = func() any { return new(exchange) }
	s.http = fasthttp.Server{
		Handler:            s.serve,
		ErrorHandler:       s.refuse,
		Logger:             slog.NewLogLogger(c.Logger.Handler(), slog.LevelDebug),
		ReadTimeout:        c.ReadTimeout,
		WriteTimeout:       c.WriteTimeout,
		IdleTimeout:        c.IdleTimeout,
		ReadBufferSize:     maxHeader,
		MaxRequestBodySize: maxChecksBody,
		// The library answers 503 beyond its bound, so there is none but that of the system.
		Concurrency:                  math.MaxInt32,
		CloseOnShutdown:              true,
		DisablePreParseMultipartForm: true,
		LazyRequestTime:              true,
		NoDefaultServerHeader:        true,
		SecureErrorLogMessage:        true,
	}
	return s
}

// Start answers what connects to ln until Close, which closes ln too.
func (s *Server) Start(ln net.Listener) {
	l := s.conns.listen(ln, s.log, &s.running)
	s.running.Go(func() {
		if err := s.http.Serve(l); err != nil {
			s.log.Error("http server ended", "err", err)
		}
	})
}

// Close accepts no more connections, answers the open requests and closes their
// connections. When ctx ends first it closes them at once and says so. It may be called
// twice.
func (s *Server) Close(ctx context.Context) error {
	s.conns.stop()
	graceful := context.AfterFunc(ctx, func() {
		s.conns.kill()
		s.cancel()
	})
	err := s.http.ShutdownWithContext(ctx)
	s.running.Wait()
	if !graceful() {
		err = context.Cause(ctx)
	}
	s.cancel()
	if err != nil {
		return fmt.Errorf("close http server: %w", err)
	}
	return nil
}

// serve answers one request.
func (s *Server) serve(ctx *fasthttp.RequestCtx) {
	defer s.rescue(ctx)
	x := s.exchanges.Get().(*exchange)
	x.read(ctx)
	s.handle(x)
	x.write(ctx)
	x.release(ctx)
	x.reset()
	s.exchanges.Put(x)
}

// release lets go of large bodies, which the library and the pool would keep for as long
// as the connection or a little longer.
func (x *exchange) release(ctx *fasthttp.RequestCtx) {
	ctx.Request.ReleaseBody(maxKept)
	if cap(x.out) > maxKept {
		// The library sends it as it is and forgets it.
		ctx.Response.SetBodyRaw(x.out)
		x.out = nil
	}
	if cap(x.checks) > maxKept/64 {
		x.checks, x.answers, x.wrong = nil, nil, nil
	}
}

// read takes what the handlers look at.
func (x *exchange) read(ctx *fasthttp.RequestCtx) {
	h := &ctx.Request.Header
	// The path as it was sent: one that is only like another is another, to gateways too.
	x.method, x.path, x.query = h.Method(), ctx.URI().PathOriginal(), ctx.URI().QueryString()
	x.contentType, x.body = h.ContentType(), ctx.Request.Body()
	x.peer = identity.Peer(ctx.RemoteAddr())
	// The library counts trailers among the headers, but refuses this one there.
	for _, value := range h.PeekAll("X-Forwarded-For") {
		x.forwardedFor = append(x.forwardedFor, string(value))
	}
}

func (r *reply) write(ctx *fasthttp.RequestCtx) {
	res := &ctx.Response
	res.SetStatusCode(r.status)
	res.Header.SetContentType("application/json")
	res.Header.SetCanonical(headerCacheControl, []byte("no-store"))
	start := 0
	for _, h := range r.headers {
		res.Header.SetCanonical(h.name, r.values[start:h.end])
		start = h.end
	}
	if cap(r.out) <= maxKept {
		res.SetBody(r.out)
	}
}

// refuse answers what the library could not read as a request. The connection ends.
func (s *Server) refuse(ctx *fasthttp.RequestCtx, err error) {
	var r reply
	late, timed := errors.AsType[interface {
		error
		Timeout() bool
	}](err)
	_, tooLong := errors.AsType[*fasthttp.ErrSmallBuffer](err)
	switch {
	case errors.Is(err, fasthttp.ErrBodyTooLarge):
		r.fail(&request.Error{Code: request.BodyTooLarge, Message: fmt.Sprintf(
			"the body is too large: want at most %d bytes, %d for /v1/checks", maxCheckBody, maxChecksBody)})
	case tooLong:
		r.fail(request.Invalid("the headers are too large: want at most %d bytes", maxHeader))
		r.status = fasthttp.StatusRequestHeaderFieldsTooLarge
	case timed && late.Timeout():
		r.fail(request.Invalid("the request did not arrive within %v", s.http.ReadTimeout))
		r.status = fasthttp.StatusRequestTimeout
	default:
		r.fail(request.Invalid("this is not a request in HTTP/1.1"))
	}
	r.write(ctx)
	if c, ok := ctx.Conn().(*conn); ok {
		c.lingers.Store(true)
	}
}

// rescue keeps a mistake in the program from ending the process.
func (s *Server) rescue(ctx *fasthttp.RequestCtx) {
	v := recover()
	if v == nil {
		return
	}
	s.log.Error("http handler panicked", "panic", v, "stack", string(debug.Stack()))
	ctx.Response.Reset()
	r := reply{status: fasthttp.StatusInternalServerError}
	r.out = append(appendError(nil, &request.Error{Code: "internal", Message: "a mistake in the program, see its log"}), '\n')
	r.write(ctx)
	ctx.SetConnectionClose()
}
