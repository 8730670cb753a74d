package peer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/tokenring/tokenring/bucket"
	peerv1 "github.com/tokenring/tokenring/proto/peer/v1"
)

// A Decider decides for other nodes: outs[i] for takes[i]. What Take leaves undecided with
// bucket.ErrFrozen, Later waits for.
type Decider interface {
	Take(ctx context.Context, takes []bucket.Take, outs []bucket.Outcome)
	Later(ctx context.Context, takes []bucket.Take, outs []bucket.Outcome)
}

// ServerConfig says who answers.
type ServerConfig struct {
	ID      string
	Boot    uint64
	Decider Decider
	Hearer  Hearer // nil listens to nobody
}

// Server answers other nodes on the peer port.
type Server struct {
	peerv1.UnimplementedPeerServer
	config  ServerConfig
	grpc    *grpc.Server
	running sync.WaitGroup
}

// NewServer returns a server that does not listen yet.
func NewServer(c ServerConfig) *Server {
	s := &Server{config: c, grpc: grpc.NewServer(
		// How long a new connection may say nothing: the end of the server waits for it.
		grpc.ConnectionTimeout(2*time.Second),
		// A connection whose other end has vanished without a word is closed in the end.
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
	)}
	peerv1.RegisterPeerServer(s.grpc, s)
	return s
}

// Start answers on a listener, which belongs to the server from here on, until Close.
func (s *Server) Start(l net.Listener) {
	s.running.Go(func() {
		// It ends with Close, or when the listener breaks: the other nodes notice that.
		_ = s.grpc.Serve(l)
	})
}

// Close closes the peer port and ends all streams. It may be called twice.
func (s *Server) Close(context.Context) error {
	s.grpc.Stop()
	s.running.Wait()
	return nil
}

// Ask serves one asker.
func (s *Server) Ask(stream grpc.BidiStreamingServer[peerv1.Question, peerv1.Reply]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	err = s.welcome(first.GetHello(), func(own *peerv1.Hello) error {
		return stream.Send(&peerv1.Reply{Kind: &peerv1.Reply_Hello{Hello: own}})
	})
	if err != nil {
		return err
	}
	a := answerer{decider: s.config.Decider, stream: stream}
	defer a.waiting.Wait()
	for {
		question, err := stream.Recv()
		if err != nil {
			return ignoreEOF(err)
		}
		checks := question.GetChecks().GetChecks()
		if len(checks) > maxChecks {
			return status.Errorf(codes.InvalidArgument, "a message of %d checks: want at most %d", len(checks), maxChecks)
		}
		if err := a.answer(stream.Context(), checks); err != nil {
			return err
		}
	}
}

// welcome answers the hello of a stream, and ends the stream if it is meant for another
// boot.
func (s *Server) welcome(hello *peerv1.Hello, send func(*peerv1.Hello) error) error {
	if hello == nil {
		return status.Error(codes.InvalidArgument, "a stream opens with a hello")
	}
	if err := send(&peerv1.Hello{Id: s.config.ID, Boot: s.config.Boot}); err != nil {
		return err
	}
	if hello.ToBoot != s.config.Boot {
		return status.Error(codes.FailedPrecondition, fmt.Sprintf("this is boot %x of %s", s.config.Boot, s.config.ID))
	}
	return nil
}

func ignoreEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// errExpired is the answer to a check whose time was over when it was sent: its asker does
// not wait any more, so nobody is charged.
var errExpired = errors.New("the time for the answer is over")

// An answerer decides the messages of one stream, one after another. Only what waits for a
// frozen partition is answered later, out of order.
type answerer struct {
	decider Decider
	stream  grpc.BidiStreamingServer[peerv1.Question, peerv1.Reply]
	sending sync.Mutex     // held while sending
	waiting sync.WaitGroup // for frozen partitions

	takes []bucket.Take
	outs  []bucket.Outcome
	at    []int        // of the check that a take is for
	limit bucket.Limit // of the last check
}

func (a *answerer) answer(ctx context.Context, checks []*peerv1.Check) error {
	a.takes, a.at = a.takes[:0], a.at[:0]
	outcomes := make([]*peerv1.Outcome, len(checks))
	for i, c := range checks {
		take, err := fromWire(c, a.limit)
		if c.BudgetUs == 0 {
			err = errExpired
		}
		if err != nil {
			outcomes[i] = outcomeToWire(c.Seq, &bucket.Outcome{Err: err})
			continue
		}
		a.limit = take.Limit
		a.takes, a.at = append(a.takes, take), append(a.at, i)
	}
	a.outs = append(a.outs[:0], make([]bucket.Outcome, len(a.takes))...)
	a.decider.Take(ctx, a.takes, a.outs)
	var late later
	for i, at := range a.at {
		if errors.Is(a.outs[i].Err, bucket.ErrFrozen) {
			late.add(checks[at], a.takes[i])
			continue
		}
		outcomes[at] = outcomeToWire(checks[at].Seq, &a.outs[i])
	}
	if len(late.takes) > 0 {
		outcomes = slices.DeleteFunc(outcomes, func(o *peerv1.Outcome) bool { return o == nil })
		a.waiting.Go(func() { a.answerLater(ctx, &late) })
	}
	return a.send(outcomes)
}

func (a *answerer) send(outcomes []*peerv1.Outcome) error {
	a.sending.Lock()
	defer a.sending.Unlock()
	return a.stream.Send(&peerv1.Reply{Kind: &peerv1.Reply_Outcomes{Outcomes: &peerv1.Outcomes{Outcomes: outcomes}}})
}

// A later is the checks of a message that wait.
type later struct {
	seqs   []uint64
	takes  []bucket.Take
	budget time.Duration // the longest
}

func (l *later) add(c *peerv1.Check, t bucket.Take) {
	l.seqs, l.takes = append(l.seqs, c.Seq), append(l.takes, t)
	l.budget = max(l.budget, time.Duration(c.BudgetUs)*time.Microsecond)
}

func (a *answerer) answerLater(ctx context.Context, l *later) {
	ctx, cancel := context.WithTimeout(ctx, l.budget)
	defer cancel()
	outs := make([]bucket.Outcome, len(l.takes))
	a.decider.Later(ctx, l.takes, outs)
	outcomes := make([]*peerv1.Outcome, len(outs))
	for i := range outs {
		outcomes[i] = outcomeToWire(l.seqs[i], &outs[i])
	}
	// If that fails the stream has ended, and its reader knows.
	_ = a.send(outcomes)
}
