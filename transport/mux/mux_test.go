package mux

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

type question struct {
	number uint64
	left   time.Duration
	text   string
}

type answer struct {
	number uint64
	text   string
}

// stream is a fake connection to the test: what is sent comes out of sent, and what is
// put into answers is received.
type stream struct {
	ctx     context.Context
	sent    chan []*question
	answers chan []*answer
	ended   chan struct{}
}

func (s *stream) Send(qs []*question) error {
	select {
	case s.sent <- slices.Clone(qs):
		return nil
	case <-s.ended:
	case <-s.ctx.Done():
	}
	return io.EOF
}

func (s *stream) Recv() ([]*answer, error) {
	select {
	case as := <-s.answers:
		return as, nil
	default:
	}
	select {
	case as := <-s.answers:
		return as, nil
	case <-s.ended:
	case <-s.ctx.Done():
	}
	return nil, io.EOF
}

// dialer hands out streams; refuse makes it fail.
type dialer struct {
	mu      sync.Mutex
	refuse  bool
	dialed  atomic.Int64
	streams chan *stream
}

func (d *dialer) open(ctx context.Context) (Stream[*question, *answer], error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dialed.Add(1)
	if d.refuse {
		return nil, errors.New("refused")
	}
	s := &stream{ctx: ctx, sent: make(chan []*question), answers: make(chan []*answer, 10), ended: make(chan struct{})}
	d.streams <- s
	return s, nil
}

func (d *dialer) set(refuse bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.refuse = refuse
}

// run starts a mux in a bubble of its own.
func run(t *testing.T, f func(t *testing.T, m *Mux[*question, *answer], d *dialer)) {
	synctest.Test(t, func(t *testing.T) {
		d := &dialer{streams: make(chan *stream, 100)}
		m := New(Config[*question, *answer]{
			Open:     d.open,
			Tag:      func(q *question, n uint64, left time.Duration) { q.number, q.left = n, left },
			Number:   func(a *answer) uint64 { return a.number },
			MaxBatch: 4,
		})
		m.Start()
		defer m.Close(t.Context())
		f(t, m, d)
	})
}

type result struct {
	answers  []*answer
	answered []bool
	err      error
}

// ask does one call in the background.
func ask(ctx context.Context, m *Mux[*question, *answer], texts ...string) <-chan result {
	out := make(chan result, 1)
	go func() {
		qs := make([]*question, len(texts))
		for i, text := range texts {
			qs[i] = &question{text: text}
		}
		r := result{answers: make([]*answer, len(qs)), answered: make([]bool, len(qs))}
		r.err = m.Do(ctx, qs, r.answers, r.answered)
		out <- r
	}()
	return out
}

func echo(qs []*question) []*answer {
	out := make([]*answer, len(qs))
	for i, q := range qs {
		out[len(qs)-1-i] = &answer{number: q.number, text: q.text}
	}
	return out
}

func TestAnswersFindTheirQuestions(t *testing.T) {
	run(t, func(t *testing.T, m *Mux[*question, *answer], d *dialer) {
		s := <-d.streams
		one, six := ask(t.Context(), m, "a"), (<-chan result)(nil)
		first := <-s.sent
		six = ask(t.Context(), m, "b", "c", "d", "e", "f", "g")
		synctest.Wait()
		second, third := <-s.sent, <-s.sent
		if len(first) != 1 || len(second) != 4 || len(third) != 2 {
			t.Fatalf("messages of %d, %d and %d questions, want 1, 4 (the most) and 2", len(first), len(second), len(third))
		}
		// In another order than they were asked, and one that nobody asked.
		s.answers <- append(echo(third), &answer{number: 99, text: "stray"})
		s.answers <- echo(second)
		s.answers <- echo(first)
		if r := <-one; r.err != nil || r.answers[0].text != "a" {
			t.Errorf("one question: %v, %+v", r.err, r.answers)
		}
		r := <-six
		for i, want := range []string{"b", "c", "d", "e", "f", "g"} {
			if r.err != nil || !r.answered[i] || r.answers[i].text != want {
				t.Errorf("question %d: %v, %+v, want %q", i, r.err, r.answers[i], want)
			}
		}
	})
}

func TestQuestionsWaitWhileConnecting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		d := &dialer{streams: make(chan *stream, 1)}
		m := New(Config[*question, *answer]{
			Open: func(ctx context.Context) (Stream[*question, *answer], error) {
				<-gate
				return d.open(ctx)
			},
			Tag:    func(q *question, n uint64, left time.Duration) { q.number, q.left = n, left },
			Number: func(a *answer) uint64 { return a.number },
		})
		m.Start()
		defer m.Close(t.Context())
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		got := ask(ctx, m, "early")
		time.Sleep(200 * time.Millisecond)
		close(gate)
		s := <-d.streams
		sent := <-s.sent
		if sent[0].left != 300*time.Millisecond {
			t.Errorf("sent with %v left, want what was left of the caller's time, 300ms", sent[0].left)
		}
		s.answers <- echo(sent)
		if r := <-got; r.err != nil {
			t.Error(r.err)
		}
	})
}

func TestWhatTheEndOfAStreamMeans(t *testing.T) {
	run(t, func(t *testing.T, m *Mux[*question, *answer], d *dialer) {
		s := <-d.streams
		sent := ask(t.Context(), m, "sent")
		<-s.sent
		// The writer now blocks with the next message, the last stays in the queue.
		ask(t.Context(), m, "in the writer's hands")
		synctest.Wait()
		queued := ask(t.Context(), m, "queued")
		synctest.Wait()
		close(s.ended)
		if r := <-sent; !errors.Is(r.err, ErrLost) || r.answered[0] {
			t.Errorf("sent, then the stream ended: %v, want ErrLost", r.err)
		}
		s = <-d.streams
		again := <-s.sent
		if len(again) != 1 || again[0].text != "queued" {
			t.Fatalf("the next stream carries %q, want what was queued and nothing that was sent", again[0].text)
		}
		s.answers <- echo(again)
		if r := <-queued; r.err != nil {
			t.Errorf("queued over the end of a stream: %v", r.err)
		}
	})
}

func TestAnswersBeforeTheEndCount(t *testing.T) {
	run(t, func(t *testing.T, m *Mux[*question, *answer], d *dialer) {
		s := <-d.streams
		got := ask(t.Context(), m, "a", "b")
		sent := <-s.sent
		s.answers <- echo(sent)[:1] // of the second question
		close(s.ended)
		r := <-got
		if !errors.Is(r.err, ErrLost) || r.answered[0] || !r.answered[1] {
			t.Errorf("one answer, then the end: %v, answered %v, want ErrLost and the second answered", r.err, r.answered)
		}
	})
}

func TestDownFailsAtOnceAndComesBack(t *testing.T) {
	run(t, func(t *testing.T, m *Mux[*question, *answer], d *dialer) {
		s := <-d.streams
		time.Sleep(time.Minute)
		d.set(true)
		close(s.ended)
		synctest.Wait()
		begin := time.Now()
		if r := <-ask(t.Context(), m, "a"); !errors.Is(r.err, ErrDown) || time.Since(begin) != 0 {
			t.Errorf("while down: %v after %v, want ErrDown at once", r.err, time.Since(begin))
		}
		time.Sleep(10 * time.Second)
		if n := d.dialed.Load(); n < 10 || n > 60 {
			t.Errorf("dialed %d times in 10 s, want a few every second", n)
		}
		d.set(false)
		begin = time.Now()
		s = <-d.streams
		if waited := time.Since(begin); waited > 750*time.Millisecond {
			t.Errorf("connected again after %v, want at most one and a half times the longest backoff", waited)
		}
		synctest.Wait()
		got := ask(t.Context(), m, "a")
		s.answers <- echo(<-s.sent)
		if r := <-got; r.err != nil {
			t.Errorf("after coming back: %v", r.err)
		}
	})
}

func TestAStreamThatEndsAtOnceIsNotHammered(t *testing.T) {
	run(t, func(t *testing.T, m *Mux[*question, *answer], d *dialer) {
		go func() {
			for s := range d.streams {
				close(s.ended)
			}
		}()
		time.Sleep(10 * time.Second)
		d.mu.Lock()
		defer d.mu.Unlock()
		if n := d.dialed.Load(); n > 60 {
			t.Errorf("dialed %d times in 10 s, want a few every second", n)
		}
		close(d.streams)
		d.refuse = true
	})
}

func TestGivingUp(t *testing.T) {
	run(t, func(t *testing.T, m *Mux[*question, *answer], d *dialer) {
		s := <-d.streams
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		late := ask(ctx, m, "late")
		sent := <-s.sent
		ask(t.Context(), m, "blocks the writer")
		synctest.Wait()
		expired := ask(ctx, m, "expires in the queue")
		if r := <-late; !errors.Is(r.err, context.DeadlineExceeded) {
			t.Errorf("without an answer in time: %v, want the deadline", r.err)
		}
		if r := <-expired; !errors.Is(r.err, context.DeadlineExceeded) {
			t.Errorf("expired in the queue: %v, want the deadline", r.err)
		}
		s.answers <- echo(sent) // nobody waits any more
		if blocked := <-s.sent; blocked[0].text != "blocks the writer" {
			t.Fatalf("sent %q", blocked[0].text)
		}
		next := ask(t.Context(), m, "next")
		got := <-s.sent
		if len(got) != 1 || got[0].text != "next" {
			t.Errorf("sent %d questions, first %q: what expired in the queue must not be sent", len(got), got[0].text)
		}
		s.answers <- echo(got)
		if r := <-next; r.err != nil {
			t.Error(r.err)
		}
	})
}

// A call of one question does not wait for all that a call of many asks.
func TestCallsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &dialer{streams: make(chan *stream, 1)}
		m := New(Config[*question, *answer]{
			Open:     d.open,
			Tag:      func(q *question, n uint64, _ time.Duration) { q.number = n },
			Number:   func(a *answer) uint64 { return a.number },
			MaxBatch: 4, MaxTurn: 2,
		})
		m.Start()
		defer m.Close(t.Context())
		s := <-d.streams
		first := ask(t.Context(), m, "first")
		synctest.Wait() // the writer has it in its hands
		many := ask(t.Context(), m, "a", "b", "c", "d", "e")
		synctest.Wait()
		more := ask(t.Context(), m, "A", "B", "C")
		synctest.Wait()
		one := ask(t.Context(), m, "one")
		synctest.Wait()
		var sent string
		for range 4 {
			qs := <-s.sent
			for _, q := range qs {
				sent += q.text + " "
			}
			sent += "| "
			s.answers <- echo(qs)
		}
		if want := "first | a b A B | one c d C | e | "; sent != want {
			t.Errorf("sent %q, want %q", sent, want)
		}
		for _, call := range []<-chan result{first, many, more, one} {
			if r := <-call; r.err != nil || slices.Contains(r.answered, false) {
				t.Errorf("%+v", r)
			}
		}
	})
}

func TestClose(t *testing.T) {
	run(t, func(t *testing.T, m *Mux[*question, *answer], d *dialer) {
		s := <-d.streams
		sent := ask(t.Context(), m, "sent")
		<-s.sent
		ask(t.Context(), m, "blocks the writer")
		synctest.Wait()
		waiting := ask(t.Context(), m, "1", "2", "3", "4", "5", "6", "7", "8", "9")
		synctest.Wait()
		if err := m.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if r := <-waiting; !errors.Is(r.err, ErrClosed) {
			t.Errorf("waiting at the close: %v, want ErrClosed", r.err)
		}
		if r := <-sent; !errors.Is(r.err, ErrLost) {
			t.Errorf("sent and not answered at the close: %v, want ErrLost", r.err)
		}
		if r := <-ask(t.Context(), m, "a"); !errors.Is(r.err, ErrClosed) {
			t.Errorf("after the close: %v, want ErrClosed", r.err)
		}
	})
}
