// Package redistest starts real Redis servers for tests, on free loopback ports and with
// nothing kept on disk.
package redistest

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tokenring/tokenring/test/wait"
)

// startTime is how long a server may take to answer, on a machine that is busy.
const startTime = 20 * time.Second

// A Server is one running redis-server. It ends with the test.
type Server struct {
	tb     testing.TB
	binary string
	port   int
	args   []string
	log    string
	cmd    *exec.Cmd // nil when stopped
}

// Start starts a server, with further arguments if given, and waits until it answers.
// Without redis-server the test is skipped, or fails where CI=true.
func Start(tb testing.TB, args ...string) *Server {
	tb.Helper()
	binary, err := exec.LookPath("redis-server")
	if err != nil {
		if os.Getenv("CI") == "true" {
			tb.Fatal("redis-server is not installed")
		}
		tb.Skip("redis-server is not installed")
	}
	dir := tb.TempDir()
	s := &Server{
		tb:     tb,
		binary: binary,
		port:   freePort(tb),
		args:   append([]string{"--dir", dir}, args...),
		log:    filepath.Join(dir, "redis.log"),
	}
	tb.Cleanup(s.Kill)
	s.Restart()
	return s
}

// freePort returns a port that nothing listens on, and neither on the port 10000 above,
// which a cluster's node uses too.
func freePort(tb testing.TB) int {
	tb.Helper()
	for range 100 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			tb.Fatal(err)
		}
		port := l.Addr().(*net.TCPAddr).Port
		bus, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port+10000)))
		l.Close()
		if err == nil {
			bus.Close()
			return port
		}
	}
	tb.Fatal("no free port")
	return 0
}

// Addr is the server's host:port.
func (s *Server) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }

// URL is the server's redis:// URL.
func (s *Server) URL() string { return "redis://" + s.Addr() }

// Client returns a client of the server that is closed with the test.
func (s *Server) Client() *redis.Client {
	c := redis.NewClient(&redis.Options{Addr: s.Addr()})
	s.tb.Cleanup(func() { c.Close() })
	return c
}

// Restart starts the server on the same port, empty, after it was killed.
func (s *Server) Restart() {
	s.tb.Helper()
	args := append([]string{
		"--port", strconv.Itoa(s.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no",
		"--logfile", s.log, "--daemonize", "no",
	}, s.args...)
	s.cmd = exec.Command(s.binary, args...)
	if err := s.cmd.Start(); err != nil {
		s.tb.Fatalf("start redis-server: %v", err)
	}
	err := wait.Until(startTime, s.answers)
	if err != nil {
		log, _ := os.ReadFile(s.log)
		s.tb.Fatalf("redis-server on port %d does not answer; its log:\n%s", s.port, log)
	}
}

// answers reports whether the server answers at all, be it that it wants a password.
func (s *Server) answers() bool {
	conn, err := net.Dial("tcp", s.Addr())
	if err != nil {
		return false
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	reply := make([]byte, 1)
	_, err = conn.Write([]byte("PING\r\n"))
	if err == nil {
		_, err = conn.Read(reply)
	}
	return err == nil
}

// Kill ends the server with SIGKILL and waits for it. It may be called twice.
func (s *Server) Kill() {
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
	s.cmd = nil
}

// Pause stops the server with SIGSTOP: its connections stay, nobody answers.
func (s *Server) Pause() { s.signal(syscall.SIGSTOP) }

// Resume lets a paused server go on.
func (s *Server) Resume() { s.signal(syscall.SIGCONT) }

func (s *Server) signal(sig syscall.Signal) {
	s.tb.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.tb.Fatalf("signal redis-server: %v", err)
	}
}

// A Cluster is a Redis Cluster whose masters share the slots evenly, without replicas.
// It goes on when one of them is down.
type Cluster struct{ Nodes []*Server }

// StartCluster starts a cluster and waits until every node sees it whole.
func StartCluster(tb testing.TB, nodes int) *Cluster {
	tb.Helper()
	const slots = 16384
	c := &Cluster{}
	for range nodes {
		c.Nodes = append(c.Nodes, Start(tb, "--cluster-enabled", "yes", "--cluster-require-full-coverage", "no",
			"--cluster-node-timeout", "2000"))
	}
	first := c.Nodes[0]
	for i, n := range c.Nodes {
		client := n.Client()
		if err := client.ClusterAddSlotsRange(tb.Context(), slots*i/nodes, slots*(i+1)/nodes-1).Err(); err != nil {
			tb.Fatalf("add slots: %v", err)
		}
		if err := client.Do(tb.Context(), "cluster", "set-config-epoch", i+1).Err(); err != nil {
			tb.Fatalf("set epoch: %v", err)
		}
		if err := client.ClusterMeet(tb.Context(), "127.0.0.1", strconv.Itoa(first.port)).Err(); err != nil {
			tb.Fatalf("meet: %v", err)
		}
	}
	known := fmt.Sprintf("cluster_known_nodes:%d\r", nodes)
	for _, n := range c.Nodes {
		client := n.Client()
		wait.For(tb, startTime, "the cluster to be whole", func() bool {
			info, err := client.ClusterInfo(tb.Context()).Result()
			return err == nil && strings.Contains(info, "cluster_state:ok\r") &&
				strings.Contains(info, "cluster_slots_ok:16384\r") && strings.Contains(info, known)
		})
	}
	return c
}

// URL names all nodes of the cluster.
func (c *Cluster) URL() string {
	url := "redis+cluster://"
	for i, n := range c.Nodes {
		if i > 0 {
			url += ","
		}
		url += n.Addr()
	}
	return url
}
