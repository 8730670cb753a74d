package httpapi

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// What a connection may still send after it was refused, so that the client, which may
// read only when it has sent all, sees the answer instead of a reset.
const (
	lingerTime  = 2 * time.Second
	lingerBytes = 16 << 20
)

// Conns are the open connections of a server. The library waits for them, but it cannot
// end them.
type conns struct {
	mu        sync.Mutex // guards all below
	listeners []*listener
	stopped   bool // no connection is accepted
	killed    bool // and every one is closed at once
	open      map[*conn]struct{}
}

// listen wraps ln. In running, which must count whoever accepts, it counts the
// connections too.
func (cs *conns) listen(ln net.Listener, log *slog.Logger, running *sync.WaitGroup) net.Listener {
	l := &listener{Listener: ln, conns: cs, log: log, running: running, stopped: make(chan struct{})}
	cs.mu.Lock()
	defer cs.mu.Unlock()
	cs.listeners = append(cs.listeners, l)
	if cs.stopped {
		l.Close()
	}
	return l
}

// stop accepts no more connections.
func (cs *conns) stop() {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	cs.stopped = true
	for _, l := range cs.listeners {
		l.Close()
	}
}

// kill closes all connections, and those that were accepted but not yet counted.
func (cs *conns) kill() {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	cs.killed = true
	for c := range cs.open {
		c.Conn.Close()
	}
}

func (cs *conns) add(c *conn) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if cs.open == nil {
		cs.open = map[*conn]struct{}{}
	}
	cs.open[c] = struct{}{}
	if cs.killed {
		c.Conn.Close()
	}
}

func (cs *conns) remove(c *conn) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	delete(cs.open, c)
}

type listener struct {
	net.Listener
	conns   *conns
	log     *slog.Logger
	running *sync.WaitGroup
	stopped chan struct{}
	once    sync.Once
	err     error // of closing
}

// Accept goes on after an error, such as that of a process that has no files left: the
// library would end for good.
func (l *listener) Accept() (net.Conn, error) {
	const first, most = 5 * time.Millisecond, time.Second
	for wait := first; ; wait = min(2*wait, most) {
		nc, err := l.Listener.Accept()
		if err == nil {
			c := &conn{Conn: nc, owner: l}
			l.running.Add(1)
			l.conns.add(c)
			return c, nil
		}
		if errors.Is(err, net.ErrClosed) {
			return nil, net.ErrClosed
		}
		select {
		case <-l.stopped:
			return nil, net.ErrClosed
		case <-time.After(wait):
			l.log.Warn("http server cannot accept connections", "err", err)
		}
	}
}

func (l *listener) Close() error {
	l.once.Do(func() {
		close(l.stopped)
		l.err = l.Listener.Close()
	})
	return l.err
}

type conn struct {
	net.Conn
	owner   *listener
	lingers atomic.Bool
	once    sync.Once
	err     error // of closing
}

func (c *conn) Close() error {
	c.once.Do(func() {
		if c.lingers.Load() {
			c.linger()
		}
		c.err = c.Conn.Close()
		c.owner.conns.remove(c)
		c.owner.running.Done()
	})
	return c.err
}

// linger ends the reply and reads what the client still sends, for a while. Whatever
// fails here, the connection is closed next.
func (c *conn) linger() {
	half, ok := c.Conn.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil || c.SetReadDeadline(time.Now().Add(lingerTime)) != nil {
		return
	}
	_, _ = io.CopyN(io.Discard, c.Conn, lingerBytes)
}
