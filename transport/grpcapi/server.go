// Package grpcapi is the gRPC port for clients.
//
//	call ─ CheckRequest ─ request.Check ─> Limiter ─> node.Answer ─ CheckResponse ─> client
//
// A stream has one reader and one writer. What a message asks is decided beside them, so
// that a check that takes long holds up none behind it; how many messages are decided at
// once is bounded, and beyond that the stream is read no further.
package grpcapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	tokenringv1 "github.com/tokenring/tokenring/proto/tokenring/v1"
	"github.com/tokenring/tokenring/transport/identity"
	"github.com/tokenring/tokenring/transport/request"
)

const (
	maxMessage = 1 << 20  // bytes that a client may send as one message
	maxHeader  = 16 << 10 // bytes of metadata
	// handshake is how long a new connection may say nothing, and so how long one can
	// hold up the end of the server.
	handshake  = 3 * time.Second
	maxStreams = 256 // calls at once on one connection
)

// Config says how a Server is built.
type Config struct {
	Limiter  request.Limiter
	Identity *identity.Resolver // nil trusts nobody
	// SendTimeout is how long a client may leave answers of a stream lying; 10 s.
	SendTimeout time.Duration
	Logger      *slog.Logger
}

// Server answers checks over gRPC.
type Server struct {
	tokenringv1.UnimplementedRateLimitServiceServer
	limiter  request.Limiter
	identity *identity.Resolver
	log      *slog.Logger

	sendTimeout time.Duration

	grpc    *grpc.Server
	health  *health.Server
	leaving context.Context // ends when streams must end
	leave   context.CancelFunc
	running sync.WaitGroup
}

// New returns a server that does not listen yet and is not ready.
func New(c Config) *Server {
	if c.Identity == nil {
		c.Identity = identity.New(identity.Config{})
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Server{limiter: c.Limiter, identity: c.Identity, log: c.Logger, health: health.NewServer(), sendTimeout: cmp.Or(c.SendTimeout, 10*time.Second)}
	s.leaving, s.leave = context.WithCancel(context.Background())
	s.grpc = grpc.NewServer(
		grpc.ForceServerCodecV2(codec{encoding.GetCodecV2(proto.Name)}),
		grpc.StreamInterceptor(s.endWithServer),
		grpc.MaxRecvMsgSize(maxMessage),
		grpc.MaxHeaderListSize(maxHeader),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.ConnectionTimeout(handshake),
		// A connection whose other end has vanished without a word is closed in the end.
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
		grpc.WaitForHandlers(true),
	)
	s.grpc.RegisterService(service(), s)
	healthv1.RegisterHealthServer(s.grpc, s.health)
	reflection.Register(s.grpc)
	s.SetReady(false)
	return s
}

// SetReady says whether clients should be sent here, and tells those that watch it.
func (s *Server) SetReady(ready bool) {
	state := healthv1.HealthCheckResponse_NOT_SERVING
	if ready {
		state = healthv1.HealthCheckResponse_SERVING
	}
	s.health.SetServingStatus("", state)
	s.health.SetServingStatus(tokenringv1.RateLimitService_ServiceDesc.ServiceName, state)
}

// Start answers what connects to ln until Close, which closes ln too.
func (s *Server) Start(ln net.Listener) {
	s.running.Go(func() {
		if err := s.grpc.Serve(ln); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			s.log.Error("grpc server ended", "err", err)
		}
	})
}

// Close accepts no more calls, ends streams and answers what was asked before. When ctx
// ends first, it cuts off what is left and says so. It may be called twice.
func (s *Server) Close(ctx context.Context) error {
	s.health.Shutdown()
	s.leave()
	graceful := context.AfterFunc(ctx, s.grpc.Stop)
	s.grpc.GracefulStop()
	s.running.Wait()
	if !graceful() {
		return fmt.Errorf("close grpc server: %w", context.Cause(ctx))
	}
	return nil
}

// endWithServer ends the streams of the other services when the server is closed, such as
// those of clients that watch its health, who would hold it up.
func (s *Server) endWithServer(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if strings.HasPrefix(info.FullMethod, "/"+tokenringv1.RateLimitService_ServiceDesc.ServiceName+"/") {
		return handler(srv, stream) // ends itself, when it has answered
	}
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	defer context.AfterFunc(s.leaving, cancel)()
	return handler(srv, endingStream{stream, ctx})
}

type endingStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s endingStream) Context() context.Context { return s.ctx }
