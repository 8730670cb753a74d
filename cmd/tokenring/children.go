package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// A localCluster runs nodes as processes of its own.
type localCluster struct {
	exe            string
	nodes          []localNode
	stdout, stderr io.Writer

	children []*child
	exits    chan *child
	logs     sync.Mutex // guards stderr
	report   *lineWriter
}

// A child is the process of a node.
type child struct {
	node localNode
	cmd  *exec.Cmd
	err  error // of the process, once it has been received from exits
	gone bool
}

// run starts the nodes, says what to try and returns when all have ended. Once ctx is
// done it asks them to stop, and kills them at the next signal.
func (l *localCluster) run(ctx context.Context) error {
	// Children are killed when the thread that started them ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := l.portsFree(); err != nil {
		return err
	}
	l.exits = make(chan *child, len(l.nodes))
	l.report = l.logOf("cluster")
	for _, n := range l.nodes {
		if err := l.start(n); err != nil {
			return errors.Join(err, l.stop())
		}
	}
	if err := l.awaitReady(ctx); err != nil {
		return errors.Join(err, l.stop())
	}
	if ctx.Err() == nil {
		l.announce()
	}
	return l.watch(ctx)
}

// portsFree makes sure that it will be the children that answer on their ports.
func (l *localCluster) portsFree() error {
	for _, n := range l.nodes {
		for _, addr := range []string{n.http, n.grpc, n.admin, n.gossip, n.peer} {
			port, err := net.Listen("tcp", addr)
			if err != nil {
				return fmt.Errorf("%s: %w", n.id, err)
			}
			port.Close()
		}
	}
	return nil
}

func (l *localCluster) start(n localNode) error {
	log := l.logOf(n.id)
	c := &child{node: n, cmd: exec.Command(l.exe, n.args...)}
	c.cmd.Stdout, c.cmd.Stderr = log, log
	c.cmd.SysProcAttr = childAttr()
	if err := c.cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", n.id, err)
	}
	l.children = append(l.children, c)
	go func() { // ends before stop and watch do, which receive what it sends
		c.err = c.cmd.Wait()
		log.flush()
		l.exits <- c
	}()
	return nil
}

func (l *localCluster) logOf(name string) *lineWriter {
	return &lineWriter{mu: &l.logs, out: l.stderr, prefix: name + " | "}
}

// awaitReady returns when every node is ready or ctx is done; with an error when one ends
// before.
func (l *localCluster) awaitReady(ctx context.Context) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for _, c := range l.children {
		for !c.ready(ctx) {
			select {
			case <-ctx.Done():
				return nil
			case dead := <-l.exits:
				dead.gone = true
				return fmt.Errorf("%s ended before it was ready: %s", dead.node.id, dead.state())
			case <-tick.C:
			}
		}
	}
	return nil
}

// ready asks for a second at the most, so that the end of a child does not go unnoticed.
func (c *child) ready(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return ready(ctx, c.node.http) == nil
}

func (l *localCluster) announce() {
	fmt.Fprintf(l.stdout, "\n%d nodes are ready:\n\n", len(l.children))
	for _, c := range l.children {
		n := c.node
		fmt.Fprintf(l.stdout, "%s  pid %d  http %s  grpc %s  admin %s  gossip %s  peer %s\n",
			n.id, c.cmd.Process.Pid, n.http, n.grpc, n.admin, n.gossip, n.peer)
	}
	fmt.Fprintf(l.stdout, "\nTry one of these; every node gives the same answer:\n\n")
	for _, c := range l.children {
		fmt.Fprintf(l.stdout, "curl -i 'http://%s/v1/check?key=user:1'\n", c.node.http)
	}
	fmt.Fprintf(l.stdout, "\nCtrl-C stops them.\n\n")
}

// watch reports nodes that end, until ctx is done or none is left.
func (l *localCluster) watch(ctx context.Context) error {
	for l.alive() > 0 {
		select {
		case <-ctx.Done():
			return l.stop()
		case dead := <-l.exits:
			dead.gone = true
			fmt.Fprintf(l.report, "%s ended: %s; nodes left: %d\n", dead.node.id, dead.state(), l.alive())
		}
	}
	return errors.New("no node is left")
}

func (l *localCluster) alive() int {
	n := 0
	for _, c := range l.children {
		if !c.gone {
			n++
		}
	}
	return n
}

// stop asks all nodes to leave and waits for them; a signal meanwhile kills them.
func (l *localCluster) stop() error {
	again := make(chan os.Signal, 1)
	signal.Notify(again, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(again)
	l.signal(syscall.SIGTERM)
	var errs []error
	for l.alive() > 0 {
		select {
		case <-again:
			l.signal(syscall.SIGKILL)
		case c := <-l.exits:
			c.gone = true
			// One that was still starting has not learned to leave, or has not left the group
			// yet that Ctrl-C goes to.
			if c.err != nil && c.signal() != syscall.SIGTERM && c.signal() != syscall.SIGINT {
				errs = append(errs, fmt.Errorf("stop %s: %s", c.node.id, c.state()))
			}
		}
	}
	return errors.Join(errs...)
}

// signal sends to all that are alive. That one has ended meanwhile is no error.
func (l *localCluster) signal(s os.Signal) {
	for _, c := range l.children {
		if !c.gone {
			_ = c.cmd.Process.Signal(s)
		}
	}
}

// signal is what ended the process, 0 if none did.
func (c *child) signal() syscall.Signal {
	if s, ok := c.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && s.Signaled() {
		return s.Signal()
	}
	return 0
}

// state says how the process ended.
func (c *child) state() string {
	if c.err != nil {
		return c.err.Error()
	}
	return c.cmd.ProcessState.String()
}

// A lineWriter passes on whole lines, each behind a prefix.
type lineWriter struct {
	mu     *sync.Mutex // guards out, which others write to as well
	out    io.Writer
	prefix string
	rest   []byte // of a line that has not ended; only its one writer touches it
}

const longestLine = 64 << 10 // bytes; what is longer is passed on in pieces

func (w *lineWriter) Write(p []byte) (int, error) {
	w.rest = append(w.rest, p...)
	end := bytes.LastIndexByte(w.rest, '\n') + 1
	if end == 0 && len(w.rest) < longestLine {
		return len(p), nil
	}
	if end == 0 {
		end = len(w.rest)
	}
	w.pass(w.rest[:end])
	w.rest = append(w.rest[:0], w.rest[end:]...)
	return len(p), nil
}

// flush passes on what is left.
func (w *lineWriter) flush() {
	if len(w.rest) > 0 {
		w.pass(w.rest)
		w.rest = nil
	}
}

func (w *lineWriter) pass(lines []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for line := range bytes.Lines(lines) {
		// There is nobody to tell that the log cannot be written.
		_, _ = fmt.Fprintf(w.out, "%s%s\n", w.prefix, bytes.TrimRight(line, "\r\n"))
	}
}
