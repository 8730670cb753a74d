package peer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tokenring/tokenring/node"
	"github.com/tokenring/tokenring/node/keeper"
	"github.com/tokenring/tokenring/node/members"
	peerv1 "github.com/tokenring/tokenring/proto/peer/v1"
)

// A Teller has something to tell other nodes. Tell does so on an open stream, whose end it
// sees by errors, and ends it by returning. Gone hears that the peer port of a boot refuses
// connections, or that another boot answers there.
type Teller interface {
	Tell(boot uint64, out keeper.Outgoing)
	Gone(boot uint64)
}

// A Hearer listens to what other nodes tell, and ends the stream by returning.
type Hearer interface {
	Hear(boot uint64, in keeper.Incoming) error
}

const (
	openTimeout = time.Second
	worked      = 500 * time.Millisecond // a stream that was open for so long is opened again at once
	minPause    = 10 * time.Millisecond  // between attempts
	maxPause    = 250 * time.Millisecond
)

// A telling keeps the stream to a boot open on which this node tells.
type telling struct {
	cancel  context.CancelFunc
	running sync.WaitGroup
}

func (p *Pool) startTelling(to node.Peer) *telling {
	ctx, cancel := context.WithCancel(context.Background())
	t := &telling{cancel: cancel}
	t.running.Go(func() { p.tell(ctx, to) })
	return t
}

// tell opens the stream again and again until ctx ends, and finds out whether the boot is
// gone when that fails.
func (p *Pool) tell(ctx context.Context, to node.Peer) {
	pause := minPause
	for ctx.Err() == nil {
		begin := time.Now()
		opened := p.tellOnce(ctx, to)
		if ctx.Err() == nil && p.Probe(ctx, to.Addr, to.Boot) == members.Gone {
			p.config.Teller.Gone(to.Boot)
		}
		if opened && time.Since(begin) > worked {
			pause = minPause
			continue
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause/2 + rand.N(pause)):
		}
		pause = min(2*pause, maxPause)
	}
}

// tellOnce opens one stream and reports whether that worked. It has a connection of its
// own, so that buckets on their way do not hold up checks.
func (p *Pool) tellOnce(ctx context.Context, to node.Peer) bool {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	conn, err := dial(to.Addr)
	if err != nil {
		return false
	}
	defer conn.Close()
	timeout := time.AfterFunc(openTimeout, cancel)
	out, err := p.openTelling(ctx, conn, to)
	if !timeout.Stop() || err != nil {
		return false
	}
	out.end = cancel
	p.config.Teller.Tell(to.Boot, out)
	return true
}

func (p *Pool) openTelling(ctx context.Context, conn *grpc.ClientConn, to node.Peer) (outgoing, error) {
	stream, err := peerv1.NewPeerClient(conn).Tell(ctx)
	if err != nil {
		return outgoing{}, fmt.Errorf("open stream: %w", err)
	}
	if err := stream.Send(&peerv1.Note{Kind: &peerv1.Note_Hello{Hello: p.hello(to.Boot)}}); err != nil {
		return outgoing{}, fmt.Errorf("send hello: %w", err)
	}
	reply, err := stream.Recv()
	if err != nil {
		return outgoing{}, fmt.Errorf("receive hello: %w", err)
	}
	return outgoing{stream: stream}, isBoot(reply.GetHello(), to.Boot)
}

var errOtherBoot = errors.New("another boot answers")

// isBoot returns an error unless a hello is that of a boot.
func isBoot(h *peerv1.Hello, boot uint64) error {
	if got := h.GetBoot(); got != boot {
		return fmt.Errorf("receive hello: %w: %x instead of %x", errOtherBoot, got, boot)
	}
	return nil
}

// outgoing is the teller's end of a stream.
type outgoing struct {
	stream grpc.BidiStreamingClient[peerv1.Note, peerv1.Heard]
	end    context.CancelFunc
}

func (o outgoing) End() { o.end() }

func (o outgoing) Send(n keeper.Note) error { return o.stream.Send(noteToWire(n)) }

func (o outgoing) Heard() (uint64, error) {
	heard, err := o.stream.Recv()
	return heard.GetCount(), err
}

// incoming is the hearer's end.
type incoming struct {
	stream grpc.BidiStreamingServer[peerv1.Note, peerv1.Heard]
}

func (i incoming) Recv() (keeper.Note, error) {
	n, err := i.stream.Recv()
	if err != nil {
		return keeper.Note{}, err
	}
	return noteFromWire(n)
}

func (i incoming) Ack(heard uint64) error { return i.stream.Send(&peerv1.Heard{Count: heard}) }

// Tell serves one teller.
func (s *Server) Tell(stream grpc.BidiStreamingServer[peerv1.Note, peerv1.Heard]) error {
	if s.config.Hearer == nil {
		return status.Error(codes.Unimplemented, "this node decides nothing itself")
	}
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	hello := first.GetHello()
	if err := s.welcome(hello, func(own *peerv1.Hello) error { return stream.Send(&peerv1.Heard{Hello: own}) }); err != nil {
		return err
	}
	return ignoreEOF(s.config.Hearer.Hear(hello.Boot, incoming{stream}))
}

// Probe finds out whether a boot still answers on a peer port.
func (p *Pool) Probe(ctx context.Context, addr string, boot uint64) members.Verdict {
	ctx, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
	defer cancel()
	if silent := knock(ctx, addr); silent != members.Alive {
		return silent
	}
	conn, err := dial(addr)
	if err != nil {
		return members.Unknown
	}
	defer conn.Close()
	_, err = open(ctx, conn, p.hello(boot))
	switch {
	case err == nil:
		return members.Alive
	case errors.Is(err, errOtherBoot):
		return members.Gone
	}
	return members.Unknown
}

// knock connects to a peer port, which says something at once if a node is there: Gone if
// it refuses, or closes the connection without a word; Unknown if nothing comes.
func knock(ctx context.Context, addr string) members.Verdict {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", addr)
	if errors.Is(err, syscall.ECONNREFUSED) {
		return members.Gone
	} else if err != nil {
		return members.Unknown
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	if err := conn.SetReadDeadline(deadline); err != nil {
		return members.Unknown
	}
	var ne net.Error
	switch _, err := conn.Read(make([]byte, 1)); {
	case err == nil:
		return members.Alive
	case errors.As(err, &ne) && ne.Timeout():
		return members.Unknown
	}
	return members.Gone
}
