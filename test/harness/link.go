package harness

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	peerv1 "github.com/tokenring/tokenring/proto/peer/v1"
)

// A link is one connection through a relay: that of a caller, and the one made for it to
// the node. When one ends, the other does.
type link struct {
	peerv1.UnimplementedPeerServer
	relay  *Relay
	server *grpc.Server // of this one connection
	caller net.Conn
	conn   *grpc.ClientConn // to the node
	node   peerv1.PeerClient
	over   chan struct{} // closed once either connection has ended
	ended  sync.Once
}

func newLink(r *Relay, caller, node net.Conn) (*link, error) {
	l := &link{relay: r, over: make(chan struct{})}
	ended := func() { l.ended.Do(func() { close(l.over) }) }
	l.caller = &watchedConn{Conn: caller, ended: ended}
	l.server = grpc.NewServer(grpc.ConnectionTimeout(2*time.Second),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}))
	peerv1.RegisterPeerServer(l.server, l)

	once := make(chan net.Conn, 1)
	once <- &watchedConn{Conn: node, ended: ended}
	dial := func(context.Context, string) (net.Conn, error) {
		select {
		case conn := <-once:
			return conn, nil
		default:
			return nil, errOver
		}
	}
	var err error
	l.conn, err = grpc.NewClient("passthrough:///"+r.to, grpc.WithContextDialer(dial), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("connect to the node: %w", err)
	}
	l.conn.Connect()
	l.node = peerv1.NewPeerClient(l.conn)
	return l, nil
}

var errOver = errors.New("the connection to the node has ended")

// serve relays until one of the connections has ended. What has arrived by then is passed
// on, if the other one allows it.
func (l *link) serve() {
	accepted := make(chan net.Conn, 1)
	accepted <- l.caller
	var serving sync.WaitGroup
	serving.Go(func() {
		// It ends when it is stopped.
		_ = l.server.Serve(&oneConn{conn: accepted, over: l.over, addr: l.caller.LocalAddr()})
	})
	<-l.over
	l.server.GracefulStop()
	l.end()
	serving.Wait()
	l.relay.dismiss(l)
}

// end ends both connections at once.
func (l *link) end() {
	l.caller.Close()
	l.conn.Close()
	l.server.Stop()
}

// Ask relays what one node asks another.
func (l *link) Ask(caller grpc.BidiStreamingServer[peerv1.Question, peerv1.Reply]) error {
	ctx, cancel := context.WithCancel(caller.Context())
	defer cancel()
	stream, err := l.node.Ask(ctx)
	if err != nil {
		return err
	}
	l.relay.running.Go(func() {
		for {
			q, err := caller.Recv()
			if err != nil {
				_ = stream.CloseSend() // the other direction sees the end
				return
			}
			if stream.Send(q) != nil {
				return
			}
		}
	})
	for {
		reply, err := stream.Recv()
		if err != nil {
			return ignoreEOF(err)
		}
		if err := caller.Send(reply); err != nil {
			return err
		}
	}
}

// watchedConn tells when it can not be read from any more.
type watchedConn struct {
	net.Conn
	ended func()
}

func (c *watchedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err != nil {
		c.ended()
	}
	return n, err
}

func (c *watchedConn) Close() error {
	c.ended()
	return c.Conn.Close()
}

// oneConn is a listener that accepts one connection.
type oneConn struct {
	conn chan net.Conn
	over chan struct{}
	addr net.Addr
}

func (l *oneConn) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conn:
		return conn, nil
	case <-l.over:
		return nil, net.ErrClosed
	}
}

func (l *oneConn) Close() error   { return nil }
func (l *oneConn) Addr() net.Addr { return l.addr }
