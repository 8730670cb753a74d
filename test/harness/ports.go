package harness

import (
	"fmt"
	"math/rand/v2"
	"net"
	"sync/atomic"
	"testing"
)

// Ports come from below the range that the system gives to outgoing connections, where a
// port that is free now might be taken by a client a moment later.
const firstPort, portCount = 12_000, 18_000

var nextPort atomic.Uint32

func init() { nextPort.Store(rand.Uint32N(portCount)) }

// freeAddr returns an address on loopback whose port is free for TCP and UDP and was given
// to no other caller of this process.
func freeAddr(tb testing.TB) string {
	tb.Helper()
	for range portCount {
		addr := fmt.Sprintf("127.0.0.1:%d", firstPort+nextPort.Add(1)%portCount)
		if free(addr) {
			return addr
		}
	}
	tb.Fatal("no port is free")
	return ""
}

func free(addr string) bool {
	tcp, err := net.Listen("tcp", addr)
	if err != nil {
		return false
	}
	defer tcp.Close()
	udp, err := net.ListenPacket("udp", addr)
	if err != nil {
		return false
	}
	return udp.Close() == nil
}

// FreePorts returns the first of so many free ports in a row.
func FreePorts(tb testing.TB, n int) int {
	tb.Helper()
	for range portCount / n {
		first := firstPort + int(nextPort.Add(uint32(n)))%portCount
		all := true
		for i := range n {
			all = all && free(fmt.Sprintf("127.0.0.1:%d", first+i))
		}
		if all {
			return first
		}
	}
	tb.Fatalf("no %d ports in a row are free", n)
	return 0
}

// FreeAddr is freeAddr for tests that start something of their own.
func FreeAddr(tb testing.TB) string { return freeAddr(tb) }
