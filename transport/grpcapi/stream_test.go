package grpcapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	tokenringv1 "github.com/tokenring/tokenring/proto/tokenring/v1"
	"github.com/tokenring/tokenring/transport/identity"
)

// rest reads a stream to its end and returns all answers by id.
func rest(t *testing.T, stream grpc.ClientStream) (map[uint64]*tokenringv1.CheckResponse, error) {
	t.Helper()
	answers := map[uint64]*tokenringv1.CheckResponse{}
	for {
		var m tokenringv1.CheckBatchResponse
		if err := stream.RecvMsg(&m); errors.Is(err, io.EOF) {
			return answers, nil
		} else if err != nil {
			return answers, err
		}
		if len(m.Results) == 0 {
			t.Error("a message without answers")
		}
		for _, r := range m.Results {
			if answers[r.Id] != nil {
				t.Errorf("two answers with id %d", r.Id)
			}
			answers[r.Id] = r
		}
	}
}

func send(t *testing.T, stream grpc.ClientStream, m proto.Message) {
	t.Helper()
	if err := stream.SendMsg(m); err != nil {
		t.Fatal(err)
	}
}

func TestStream(t *testing.T) {
	l := newLimiter()
	_, conn := start(t, l)
	stream := openStream(t, metadata.AppendToOutgoingContext(within(t), "x-forwarded-for", "203.0.113.9"), conn)
	const messages, each = 200, 7
	go func() {
		for i := range messages {
			var m tokenringv1.CheckBatchRequest
			for j := range each {
				m.Checks = append(m.Checks, &tokenringv1.CheckRequest{Id: uint64(i*each + j), Limit: fmt.Sprint("limit-", i)})
			}
			// A failure shows as answers that are missing.
			_ = stream.Send(&m)
			_ = stream.Send(batch())
		}
		_ = stream.CloseSend()
	}()
	answers, err := rest(t, stream)
	if err != nil || len(answers) != messages*each {
		t.Fatalf("%d answers, %v", len(answers), err)
	}
	for id, a := range answers {
		want := &tokenringv1.CheckResponse{Id: id, Allowed: true, Limit: fmt.Sprint("limit-", id/each), Key: "203.0.113.9",
			Burst: 20, Remaining: 19, ResetAfterMs: 600, Node: "node-2"}
		if !proto.Equal(a, want) {
			t.Errorf("%v, want %v", a, want)
		}
	}
	if asked := l.asked(); len(asked) != messages {
		t.Errorf("%d messages became %d calls", messages, len(asked))
	}
}

func TestStreamGoesOnAfterErrors(t *testing.T) {
	_, conn := start(t, newLimiter())
	for _, c := range wrong {
		ctx := within(t)
		if c.stranger {
			ctx = metadata.AppendToOutgoingContext(ctx, "x-forwarded-for", "203.0.113.9")
		}
		stream := openStream(t, ctx, conn)
		c.req.Id = 1
		send(t, stream, batch(c.req))
		send(t, stream, batch(&tokenringv1.CheckRequest{Id: 2}, &tokenringv1.CheckRequest{Id: 3, Limit: "denied"}))
		if err := stream.CloseSend(); err != nil {
			t.Fatal(err)
		}
		answers, err := rest(t, stream)
		want := &tokenringv1.CheckResponse{Id: 1, Error: &tokenringv1.Error{Code: c.code, Message: c.message}}
		if err != nil || len(answers) != 3 || !proto.Equal(answers[1], want) || !answers[2].GetAllowed() || answers[3].GetRetryAfterMs() != 1001 {
			t.Errorf("%v: %v, %v, want %v", c.req, answers, err, want)
		}
	}
}

// A check that takes long holds up none behind it.
func TestStreamOutOfOrder(t *testing.T) {
	l := newLimiter()
	_, conn := start(t, l)
	stream := openStream(t, within(t), conn)
	send(t, stream, batch(&tokenringv1.CheckRequest{Id: 1, Limit: "slow"}))
	<-l.in
	for id := uint64(2); id < 1000; id++ {
		send(t, stream, batch(&tokenringv1.CheckRequest{Id: id}))
		m, err := stream.Recv()
		if err != nil || len(m.Results) != 1 || m.Results[0].Id != id {
			t.Fatalf("%v, %v, want the answer %d", m, err, id)
		}
	}
	close(l.slow)
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if answers, err := rest(t, stream); err != nil || len(answers) != 1 || !answers[1].GetAllowed() {
		t.Errorf("%v, %v, want the answer 1", answers, err)
	}
}

// Beyond so many messages that wait to be decided, a stream is read no further.
func TestStreamBackPressure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter()
		ln := bufconn.Listen(1 << 20)
		s := New(Config{Limiter: l, Identity: identity.New(identity.Config{})})
		s.Start(ln)
		conn, err := grpc.NewClient("passthrough:///bufconn", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return ln.Dial() }))
		if err != nil {
			t.Fatal(err)
		}
		stream := openStream(t, t.Context(), conn)
		const messages = 3 * atOnce
		for id := range uint64(messages) {
			send(t, stream, batch(&tokenringv1.CheckRequest{Id: id, Limit: "slow"}))
		}
		if err := stream.CloseSend(); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if asked := len(l.asked()); asked != atOnce {
			t.Errorf("%d messages are decided at once, want %d", asked, atOnce)
		}
		close(l.slow)
		if answers, err := rest(t, stream); err != nil || len(answers) != messages {
			t.Errorf("%d answers, %v, want %d", len(answers), err, messages)
		}
		if err := errors.Join(conn.Close(), s.Close(t.Context())); err != nil {
			t.Error(err)
		}
	})
}

func TestStreamClientGoesAway(t *testing.T) {
	l := newLimiter()
	s, conn := start(t, l)
	ctx, cancel := context.WithCancel(within(t))
	stream := openStream(t, ctx, conn)
	send(t, stream, batch(&tokenringv1.CheckRequest{Limit: "slow"}))
	<-l.in
	cancel()
	<-l.gone
	if err := s.Close(within(t)); err != nil {
		t.Errorf("the stream has not ended: %v", err)
	}
}

func TestStreamUnreadable(t *testing.T) {
	for _, c := range unreadable {
		l := newLimiter()
		_, conn := start(t, l)
		stream := openStream(t, within(t), conn)
		send(t, stream, batch(&tokenringv1.CheckRequest{Id: 1, Limit: "slow"}))
		<-l.in
		m := new(emptypb.Empty)
		m.ProtoReflect().SetUnknown(c.batch)
		send(t, stream, m)
		close(l.slow)
		answers, err := rest(t, stream)
		if status.Code(err) != c.status {
			t.Errorf("%s: %v, want %v", c.name, err, c.status)
		}
		// What the library itself ends is ended without the answers that are due.
		if c.status == codes.InvalidArgument && !answers[1].GetAllowed() {
			t.Errorf("%s: what was asked before has no answer", c.name)
		}
	}
}

func TestCloseAnswersWhatIsOpen(t *testing.T) {
	l := newLimiter()
	s, conn := start(t, l)
	streaming := openStream(t, within(t), conn)
	send(t, streaming, batch(&tokenringv1.CheckRequest{Id: 1, Limit: "slow"}))
	idle := openStream(t, within(t), conn)
	send(t, idle, batch(&tokenringv1.CheckRequest{}))
	if _, err := idle.Recv(); err != nil {
		t.Fatal(err)
	}
	single := make(chan error, 1)
	go func() {
		_, err := tokenringv1.NewRateLimitServiceClient(conn).Check(within(t), &tokenringv1.CheckRequest{Limit: "slow"})
		single <- err
	}()
	<-l.in
	<-l.in

	closed := make(chan error, 2)
	for range 2 {
		go func() { closed <- s.Close(context.Background()) }()
	}
	if answers, err := rest(t, idle); status.Code(err) != codes.Unavailable || len(answers) > 0 {
		t.Errorf("a stream that waits for nothing ended with %v, %v", answers, err)
	}
	select {
	case err := <-closed:
		t.Fatalf("closed, %v, with open calls", err)
	default:
	}
	close(l.slow)
	if answers, err := rest(t, streaming); status.Code(err) != codes.Unavailable || !answers[1].GetAllowed() {
		t.Errorf("a stream with an open check ended with %v, %v", answers, err)
	}
	if err := <-single; err != nil {
		t.Errorf("an open call: %v", err)
	}
	for range 2 {
		if err := <-closed; err != nil {
			t.Error(err)
		}
	}
	if _, err := tokenringv1.NewRateLimitServiceClient(conn).Check(within(t), &tokenringv1.CheckRequest{}); status.Code(err) != codes.Unavailable {
		t.Errorf("a call after the end: %v", err)
	}
}

func TestCloseGivesUp(t *testing.T) {
	l := newLimiter()
	s, conn := start(t, l)
	stream := openStream(t, within(t), conn)
	send(t, stream, batch(slices.Repeat([]*tokenringv1.CheckRequest{{Limit: "slow"}}, 3)...))
	<-l.in
	ctx, cancel := context.WithCancelCause(t.Context())
	gaveUp := errors.New("no more patience")
	cancel(gaveUp)
	if err := s.Close(ctx); !errors.Is(err, gaveUp) {
		t.Errorf("error %v", err)
	}
	if answers, err := rest(t, stream); err == nil || len(answers) > 0 {
		t.Errorf("the client got %v, %v", answers, err)
	}
}

func TestCloseBeforeStart(t *testing.T) {
	s := New(Config{})
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.Start(ln)
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := ln.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the listener is still open: %v", err)
	}
}
