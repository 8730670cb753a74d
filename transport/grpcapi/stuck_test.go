package grpcapi

import (
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	tokenringv1 "github.com/tokenring/tokenring/proto/tokenring/v1"
	"github.com/tokenring/tokenring/test/wait"
	"github.com/tokenring/tokenring/transport/request"
)

// A client that asks and does not read its answers is neither read on, so that it cannot
// fill the memory, nor kept: its stream ends.
func TestStreamThatIsNotRead(t *testing.T) {
	l := newLimiter()
	_, conn := startWith(t, l, 100*time.Millisecond)
	stream := openStream(t, within(t), conn)
	full := &tokenringv1.CheckBatchRequest{Checks: make([]*tokenringv1.CheckRequest, request.MaxChecks)}
	for i := range full.Checks {
		full.Checks[i] = &tokenringv1.CheckRequest{Id: uint64(i + 1)}
	}
	// Sending blocks when the server does not read on, and fails when the stream has ended.
	var sending sync.WaitGroup
	sent := 0
	sending.Go(func() {
		for ; sent < 10_000; sent++ {
			if stream.SendMsg(full) != nil {
				return
			}
		}
	})
	stack := make([]byte, 4<<20)
	serving := func() bool {
		return strings.Contains(string(stack[:runtime.Stack(stack, true)]), "(*Server).CheckStream(")
	}
	wait.For(t, 30*time.Second, "the stream to be served", serving)
	wait.For(t, 30*time.Second, "the stream to be given up", func() bool { return !serving() })
	var err error
	read := 0
	for ; err == nil; read++ {
		_, err = stream.Recv()
	}
	sending.Wait()
	if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("the stream ended with %v, want ResourceExhausted", err)
	}
	t.Logf("%d messages were sent and %d answered before the stream ended", sent, read)
	// What was answered lies in the buffers of the connection, with a few messages behind.
	if read > 100 || sent > 1000 {
		t.Errorf("%d messages sent and %d answered: the server read on", sent, read)
	}
}
