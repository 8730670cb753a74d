package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// asChild is the variable that makes the test binary play a node, or be the command
// cluster that starts such nodes.
const asChild = "PLAY_NODE"

func TestMain(m *testing.M) {
	part := os.Getenv(asChild)
	switch {
	case part == "":
		os.Exit(m.Run())
	case os.Args[1] == "cluster":
		main()
	default:
		os.Exit(playNode(part, os.Args[1:]))
	}
}

// playNode answers /readyz at the address behind --http until SIGTERM. The part says how
// the node whose id is behind --id misbehaves.
func playNode(part string, args []string) int {
	valueOf := func(flag string) string { return args[slices.Index(args, flag)+1] }
	id := valueOf("--id")
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	fmt.Fprintln(os.Stderr, strings.Join(args, " "))
	if part == "fail "+id {
		fmt.Print("listen: address already in use")
		return 1
	}
	l, err := net.Listen("tcp", valueOf("--http"))
	if err != nil {
		fmt.Println(err)
		return 1
	}
	served := make(chan struct{})
	go http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/die" {
			close(served)
		}
	}))
	for {
		select {
		case <-served:
			return 3
		case <-stop:
			if part == "deaf "+id {
				fmt.Println("does not stop")
				continue
			}
			fmt.Println("stops")
			return 0
		}
	}
}

func TestLineWriter(t *testing.T) {
	long := strings.Repeat("x", longestLine)
	for _, c := range []struct {
		writes []string
		want   string
	}{
		{[]string{"a\nb\n"}, "n | a\nn | b\n"},
		{[]string{"a", "b\nc"}, "n | ab\nn | c\n"},
		{[]string{"a\r\n\n", "\n"}, "n | a\nn | \nn | \n"},
		{[]string{long, "y\n"}, "n | " + long + "\nn | y\n"},
		{[]string{"", ""}, ""},
	} {
		var out bytes.Buffer
		w := &lineWriter{mu: &sync.Mutex{}, out: &out, prefix: "n | "}
		for _, p := range c.writes {
			if n, err := io.WriteString(w, p); n != len(p) || err != nil {
				t.Errorf("%d bytes written, error %v", n, err)
			}
		}
		w.flush()
		if out.String() != c.want {
			t.Errorf("%.50q: %.100q, want %.100q", c.writes, &out, c.want)
		}
	}
}

// A buffer may be written and read at the same time; it says when it holds something.
type buffer struct {
	mu      sync.Mutex // guards all below
	text    bytes.Buffer
	want    string
	arrived chan struct{}
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n, err := b.text.Write(p)
	b.look()
	return n, err
}

func (b *buffer) look() {
	if b.arrived != nil && strings.Contains(b.text.String(), b.want) {
		close(b.arrived)
		b.arrived = nil
	}
}

// await returns a channel that is closed once the buffer holds want.
func (b *buffer) await(want string) <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	arrived := make(chan struct{})
	b.want, b.arrived = want, arrived
	b.look()
	return arrived
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// running is a cluster of played nodes.
type running struct {
	local     []localNode
	out, log  buffer
	interrupt func()
	ended     chan error
}

// play starts a cluster of n nodes, one of which may misbehave.
func play(t *testing.T, n int, part string) *running {
	t.Helper()
	t.Setenv(asChild, part)
	r := &running{local: freeCluster(t, n), ended: make(chan error, 1)}
	ctx, interrupt := context.WithCancel(t.Context())
	r.interrupt = interrupt
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	l := localCluster{exe: exe, nodes: r.local, stdout: &r.out, stderr: &r.log}
	go func() { r.ended <- l.run(ctx) }()
	return r
}

// freeCluster plans a cluster on ports that nobody uses.
func freeCluster(t *testing.T, n int) []localNode {
	t.Helper()
	for range 100 {
		_, port, err := net.SplitHostPort(nobody(t))
		if err != nil {
			t.Fatal(err)
		}
		base, err := strconv.Atoi(port)
		if err != nil {
			t.Fatal(err)
		}
		local, err := planCluster(n, base, base+5, nil)
		if err != nil {
			continue
		}
		if (&localCluster{nodes: local}).portsFree() == nil {
			return local
		}
	}
	t.Fatal("no free ports")
	return nil
}

// wait waits until the buffer holds want; it fails when the cluster ends before.
func (r *running) wait(t *testing.T, b *buffer, want string) {
	t.Helper()
	arrived := b.await(want)
	select {
	case <-arrived:
	case err := <-r.ended:
		r.ended <- err
		select {
		case <-arrived:
		default:
			t.Fatalf("the cluster ended without %q: %v\n%s\n%s", want, err, &r.out, &r.log)
		}
	}
}

const lastWords = "Ctrl-C stops them."

func TestClusterRunsAndStops(t *testing.T) {
	r := play(t, 3, "well")
	r.wait(t, &r.out, lastWords)
	for _, n := range r.local {
		for _, want := range []string{n.id + "  pid ", "  http " + n.http + "  grpc " + n.grpc + "  admin " + n.admin + "  gossip " + n.gossip + "  peer " + n.peer + "\n",
			"\ncurl -i 'http://" + n.http + "/v1/check?key=user:1'\n"} {
			if !strings.Contains(r.out.String(), want) {
				t.Errorf("%q is missing from\n%s", want, &r.out)
			}
		}
		if err := ready(t.Context(), n.http); err != nil {
			t.Errorf("%s: %v", n.id, err)
		}
	}
	r.interrupt()
	if err := <-r.ended; err != nil {
		t.Errorf("error %v", err)
	}
	for _, n := range r.local {
		for _, want := range []string{n.id + " | " + strings.Join(n.args, " ") + "\n", n.id + " | stops\n"} {
			if strings.Count(r.log.String(), want) != 1 {
				t.Errorf("%q is not once in\n%s", want, &r.log)
			}
		}
	}
}

func TestClusterGoesOnWithoutANode(t *testing.T) {
	r := play(t, 2, "well")
	r.wait(t, &r.out, lastWords)
	die(t, r.local[1])
	r.wait(t, &r.log, "cluster | node-2 ended: exit status 3; nodes left: 1\n")
	if err := ready(t.Context(), r.local[0].http); err != nil {
		t.Errorf("the other node: %v", err)
	}
	die(t, r.local[0])
	if err := <-r.ended; message(err) != "no node is left" {
		t.Errorf("error %v", err)
	}
}

// die makes a played node end.
func die(t *testing.T, n localNode) {
	t.Helper()
	resp, err := http.Get("http://" + n.http + "/die")
	if err == nil {
		resp.Body.Close()
	}
}

func TestClusterEndsWhenANodeCannotStart(t *testing.T) {
	r := play(t, 3, "fail node-2")
	if err := <-r.ended; message(err) != "node-2 ended before it was ready: exit status 1" {
		t.Errorf("error %v", err)
	}
	if want := "node-2 | listen: address already in use\n"; !strings.Contains(r.log.String(), want) {
		t.Errorf("%q is missing from\n%s", want, &r.log)
	}
	if r.out.String() != "" {
		t.Errorf("output %q", &r.out)
	}
	for _, n := range r.local {
		if ready(t.Context(), n.http) == nil {
			t.Errorf("%s goes on", n.id)
		}
	}
}

func TestClusterNeedsItsPorts(t *testing.T) {
	local := freeCluster(t, 2)
	l, err := net.Listen("tcp", local[1].peer)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c := localCluster{exe: "/nowhere", nodes: local, stdout: io.Discard, stderr: io.Discard}
	if err := c.run(t.Context()); !strings.HasPrefix(message(err), "node-2: listen tcp "+local[1].peer+": ") {
		t.Errorf("error %v", err)
	}
}

func TestClusterWithoutABinary(t *testing.T) {
	c := localCluster{exe: "/nowhere", nodes: freeCluster(t, 2), stdout: io.Discard, stderr: io.Discard}
	if err := c.run(t.Context()); message(err) != "start node-1: fork/exec /nowhere: no such file or directory" {
		t.Errorf("error %v", err)
	}
}

func TestClusterInterruptedWhileStarting(t *testing.T) {
	r := play(t, 2, "well")
	r.interrupt()
	if err := <-r.ended; err != nil {
		t.Errorf("error %v", err)
	}
}

// A second signal kills what does not stop. It is sent to a process of its own, since
// that runs the cluster.
func TestClusterKillsAtTheSecondSignal(t *testing.T) {
	local := freeCluster(t, 2)
	cmd, log := startParent(t, local, "deaf node-1")
	<-log.await(lastWords)
	held := hold(t, local)
	signalTo(t, cmd, syscall.SIGINT)
	<-log.await("node-1 | does not stop")
	signalTo(t, cmd, syscall.SIGTERM)
	if err := cmd.Wait(); message(err) != "exit status 1" {
		t.Errorf("error %v", err)
	}
	if want := "stop node-1: signal: killed\n"; !strings.Contains(log.String(), want) {
		t.Errorf("%q is missing from\n%s", want, log)
	}
	awaitEnd(t, held)
}

// startParent runs the command cluster in a process of its own.
func startParent(t *testing.T, local []localNode, part string) (*exec.Cmd, *buffer) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	port := func(addr string) string { return addr[strings.LastIndexByte(addr, ':')+1:] }
	cmd := exec.Command(exe, "cluster", "--nodes", strconv.Itoa(len(local)),
		"--base-port", port(local[0].http), "--gossip-base-port", port(local[0].gossip), "--", "--replicas", "0")
	cmd.Env = append(os.Environ(), asChild+"="+part)
	log := &buffer{}
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	return cmd, log
}

// hold opens a connection to each node: it ends when the process does.
func hold(t *testing.T, local []localNode) []net.Conn {
	t.Helper()
	var conns []net.Conn
	for _, n := range local {
		c, err := net.Dial("tcp", n.http)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		conns = append(conns, c)
	}
	return conns
}

// awaitEnd waits until the processes behind the connections have ended.
func awaitEnd(t *testing.T, held []net.Conn) {
	t.Helper()
	for i, c := range held {
		_ = c.SetReadDeadline(time.Now().Add(30 * time.Second))
		if _, err := c.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("node %d has not ended", i+1)
		}
	}
}

func signalTo(t *testing.T, cmd *exec.Cmd, s os.Signal) {
	t.Helper()
	if err := cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}
