package harness

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"google.golang.org/grpc"

	peerv1 "github.com/tokenring/tokenring/proto/peer/v1"
)

// relayHost is the address that nodes behind relays are known by. They listen on the same
// ports of another loopback address.
const relayHost = "127.0.0.2"

// A Fate is what becomes of a note on its way.
type Fate int

const (
	// Pass delivers it.
	Pass Fate = iota
	// Twice delivers it two times in a row.
	Twice
	// Break loses it, and ends the connection: a stream does not go on behind a gap.
	Break
)

// A Hook says what becomes of a note that the node of an id tells the one behind a relay.
// It may take its time: what comes behind the note waits. It is called by one goroutine for
// each stream.
type Hook func(from string, n *peerv1.Note) Fate

// Relay stands before the peer port of a node. All that others tell or ask the node passes
// through it, and a hook may interfere. A port without a node behind it closes connections
// without a word, as one of a dead process does.
type Relay struct {
	to       string // host:port of the node
	listener net.Listener
	hook     atomic.Pointer[Hook]
	running  sync.WaitGroup

	mu       sync.Mutex // guards what follows
	links    map[*link]bool
	tellings map[string]*telling // open, by the id of who tells
	closed   bool
}

// startRelay starts the relay before a peer port, which ends with the test.
func startRelay(tb testing.TB, to string) *Relay {
	tb.Helper()
	_, port, err := net.SplitHostPort(to)
	if err != nil {
		tb.Fatal(err)
	}
	l, err := net.Listen("tcp", net.JoinHostPort(relayHost, port))
	if errors.Is(err, syscall.EADDRNOTAVAIL) {
		tb.Skipf("this system has no second loopback address: %v", err)
	} else if err != nil {
		tb.Fatal(err)
	}
	r := &Relay{to: to, listener: l, links: map[*link]bool{}, tellings: map[string]*telling{}}
	r.SetHook(nil)
	r.running.Go(r.accept)
	tb.Cleanup(r.close)
	return r
}

// SetHook asks this hook about each note from now on; nil lets all pass.
func (r *Relay) SetHook(h Hook) {
	if h == nil {
		h = func(string, *peerv1.Note) Fate { return Pass }
	}
	r.hook.Store(&h)
}

// Repeat delivers a note once more, as if the node of that id had told it again now, and
// reports whether that node has a stream open.
func (r *Relay) Repeat(from string, n *peerv1.Note) bool {
	r.mu.Lock()
	t := r.tellings[from]
	r.mu.Unlock()
	return t != nil && t.deliver(n, true) == nil
}

// Cut ends the connection on which the node of that id tells, and reports whether there
// was one.
func (r *Relay) Cut(from string) bool {
	r.mu.Lock()
	t := r.tellings[from]
	r.mu.Unlock()
	if t != nil {
		t.link.end()
	}
	return t != nil
}

func (r *Relay) close() {
	r.mu.Lock()
	r.closed = true
	links := make([]*link, 0, len(r.links))
	for l := range r.links {
		links = append(links, l)
	}
	r.mu.Unlock()
	r.listener.Close()
	for _, l := range links {
		l.end()
	}
	r.running.Wait()
}

func (r *Relay) accept() {
	for {
		conn, err := r.listener.Accept()
		if err != nil {
			return // closed
		}
		r.running.Go(func() {
			defer conn.Close()
			var d net.Dialer
			node, err := d.DialContext(context.Background(), "tcp", r.to)
			if err != nil {
				return // nobody is there, and nothing is said
			}
			defer node.Close()
			l, err := newLink(r, conn, node)
			if err == nil && r.admit(l) {
				l.serve()
			}
		})
	}
}

func (r *Relay) admit(l *link) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		r.links[l] = true
	}
	return !r.closed
}

func (r *Relay) dismiss(l *link) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.links, l)
}

// open notes that a stream is there, shut that it is not any more.
func (r *Relay) open(from string, t *telling) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tellings[from] = t
}

func (r *Relay) shut(from string, t *telling) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.tellings[from] == t {
		delete(r.tellings, from)
	}
}

// Tell relays what one node tells another.
func (l *link) Tell(caller grpc.BidiStreamingServer[peerv1.Note, peerv1.Heard]) error {
	ctx, cancel := context.WithCancel(caller.Context())
	defer cancel()
	first, err := caller.Recv()
	if err != nil {
		return err
	}
	stream, err := l.node.Tell(ctx)
	if err != nil {
		return err
	}
	if err := stream.Send(first); err != nil {
		return err
	}
	from, t := first.GetHello().GetId(), &telling{link: l, stream: stream}
	l.relay.running.Go(func() { t.pump(from, caller) })
	defer l.relay.shut(from, t)
	for {
		heard, err := stream.Recv()
		if err != nil {
			return ignoreEOF(err)
		}
		if heard.Hello != nil {
			l.relay.open(from, t)
		}
		heard.Count = t.original(heard.Count)
		if err := caller.Send(heard); err != nil {
			return err
		}
	}
}

// A telling is a stream on which one node tells another.
type telling struct {
	link *link

	mu     sync.Mutex // guards what follows; held while sending
	stream grpc.BidiStreamingClient[peerv1.Note, peerv1.Heard]
	sent   uint64   // notes
	added  []uint64 // numbers of those that the teller does not know of
}

func (t *telling) pump(from string, caller grpc.BidiStreamingServer[peerv1.Note, peerv1.Heard]) {
	for {
		n, err := caller.Recv()
		if err != nil {
			// The end of the caller's stream is the end of the other one too.
			_ = t.stream.CloseSend()
			return
		}
		fate := (*t.link.relay.hook.Load())(from, n)
		if fate == Break {
			t.link.end()
			return
		}
		err = t.deliver(n, false)
		if err == nil && fate == Twice {
			err = t.deliver(n, true)
		}
		if err != nil {
			return // the other direction sees why
		}
	}
}

func (t *telling) deliver(n *peerv1.Note, added bool) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sent++
	if added {
		t.added = append(t.added, t.sent)
	}
	return t.stream.Send(n)
}

// original returns how many of so many notes the teller has told itself.
func (t *telling) original(count uint64) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	own := count
	for _, number := range t.added {
		if number <= count {
			own--
		}
	}
	return own
}

func ignoreEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
