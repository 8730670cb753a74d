package grpcapi

import (
	"errors"
	"io"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	tokenringv1 "github.com/tokenring/tokenring/proto/tokenring/v1"
	"github.com/tokenring/tokenring/transport/identity"
	"github.com/tokenring/tokenring/transport/request"
)

// What one stream may hold: messages that are decided at the same time, and checks that
// were read and whose answers were not taken yet. Beyond that it is read no further.
const (
	atOnce    = 32
	maxUnsent = request.MaxChecks
)

type checkStream = grpc.BidiStreamingServer[tokenringv1.CheckBatchRequest, tokenringv1.CheckBatchResponse]

// A conversation is one stream of checks.
type conversation struct {
	server *Server
	stream checkStream
	client identity.Client
	places chan struct{}       // holds one for each message that is being decided
	room   *semaphore.Weighted // for checks whose answers were not sent yet
	out    chan []*tokenringv1.CheckResponse
	stuck  chan struct{} // closed when the client does not take its answers

	mu       sync.Mutex // guards ended, and that deciding does not grow then
	ended    bool       // nothing more is decided
	deciding sync.WaitGroup
}

// CheckStream decides checks until the client has asked all it wants or the server is
// closed. What is being decided then is still answered.
func (s *Server) CheckStream(stream checkStream) error {
	c := &conversation{
		server: s,
		stream: stream,
		client: s.client(stream.Context()),
		places: make(chan struct{}, atOnce),
		room:   semaphore.NewWeighted(maxUnsent),
		out:    make(chan []*tokenringv1.CheckResponse, atOnce),
		stuck:  make(chan struct{}),
	}
	read := make(chan error, 1)
	// The reader ends after this method has returned: nothing else wakes it.
	s.running.Go(func() { read <- c.read() })
	var writing sync.WaitGroup
	writing.Go(c.write)

	var err error
	select {
	case err = <-read:
	case <-s.leaving.Done():
		err = status.Error(codes.Unavailable, "the node is stopping: open another stream")
	case <-c.stuck:
		// The writer is freed by the return, and what is being decided by the writer.
		s.running.Go(c.end)
		return status.Errorf(codes.ResourceExhausted, "answers were not read for %v", s.sendTimeout)
	}
	c.end()
	writing.Wait()
	return err
}

// read starts deciding what it reads until the client has sent all, or until the end.
func (c *conversation) read() error {
	for {
		m := new(tokenringv1.CheckBatchRequest)
		err := receive(c.stream.RecvMsg, m)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if len(m.GetChecks()) == 0 {
			continue
		}
		if err := c.room.Acquire(c.stream.Context(), int64(len(m.GetChecks()))); err != nil {
			return err
		}
		c.places <- struct{}{}
		if !c.start(m.GetChecks()) {
			return nil
		}
	}
}

// start decides checks in the background, unless the conversation has ended.
func (c *conversation) start(checks []*tokenringv1.CheckRequest) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return false
	}
	c.deciding.Go(func() {
		c.out <- c.server.decide(c.stream.Context(), c.client, checks)
		<-c.places
	})
	return true
}

// end waits until everything that was started is handed to the writer.
func (c *conversation) end() {
	c.mu.Lock()
	c.ended = true
	c.mu.Unlock()
	c.deciding.Wait()
	close(c.out)
}

// write sends answers, and with them those that have come meanwhile.
func (c *conversation) write() {
	var broken error
	for results := range c.out {
		for more := true; more && len(results) < request.MaxChecks; {
			select {
			case next := <-c.out:
				results = append(results, next...)
				more = next != nil // closed
			default:
				more = false
			}
		}
		// Of a broken stream the reader hears too; what comes until then goes nowhere.
		if broken == nil {
			late := time.AfterFunc(c.server.sendTimeout, func() { close(c.stuck) })
			broken = c.stream.Send(&tokenringv1.CheckBatchResponse{Results: results})
			if !late.Stop() {
				broken = errStuck
			}
		}
		c.room.Release(int64(len(results)))
	}
}

var errStuck = errors.New("the client does not read its answers")
