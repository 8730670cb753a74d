// Package mux lets very many callers share one stream of questions and answers.
//
//	Do ──> queue ──> writer ── Send, up to MaxBatch at once ──> stream
//	Do <── pending <── reader ── Recv <──────────────────────── stream
//
// Batching comes from load, without a timer: the writer sends whatever is queued, and
// while it is busy sending, more is queued. Each question has a number, its answer
// carries the same one, and so answers may come in any order.
//
// The mux opens its stream itself and opens it again when it has ended:
//
//	connecting ── opened ──> up ── ended ──> connecting ── failed ──> down ── later ──> opened ──> up
//
// While it is connecting, questions wait in the queue, within their callers' time. When
// the stream cannot be opened the mux is down: everything that waits fails at once with
// ErrDown, as does what is asked until an attempt in the background has worked. What was
// sent and not answered when the stream ended fails with ErrLost, and may have been
// acted on; what was only queued is sent on the next stream.
package mux

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"
)

// Errors of Do. They are told apart by whether the question may have been acted on.
var (
	ErrDown   = errors.New("not connected")                     // was not sent
	ErrBusy   = errors.New("too many questions are waiting")    // was not sent
	ErrClosed = errors.New("closed")                            // was not sent
	ErrLost   = errors.New("connection lost before the answer") // may have been acted on
)

// A Stream is one open connection. Send and Recv may be called at the same time as each
// other; both fail once the stream has ended.
type Stream[Q, A any] interface {
	Send([]Q) error
	Recv() ([]A, error)
}

// Config says how a Mux talks. Zero values stand for the defaults.
type Config[Q, A any] struct {
	// Open returns a new stream that ends with its context.
	Open func(context.Context) (Stream[Q, A], error)
	// Tag writes into a question, just before it is sent, its number and the time that
	// is left to answer it.
	Tag func(q Q, number uint64, left time.Duration)
	// Number reads the number of an answer.
	Number func(A) uint64

	MaxBatch    int           // questions in one message; 512
	MaxQueue    int           // questions that wait; 65536
	OpenTimeout time.Duration // 1 s
	MinBackoff  time.Duration // between attempts to open; 25 ms
	MaxBackoff  time.Duration // 500 ms
	OnState     func(up bool) // called when the stream is up and when it has ended
}

func (c Config[Q, A]) withDefaults() Config[Q, A] {
	c.MaxBatch = cmp.Or(c.MaxBatch, 512)
	c.MaxQueue = cmp.Or(c.MaxQueue, 1<<16)
	c.OpenTimeout = cmp.Or(c.OpenTimeout, time.Second)
	c.MinBackoff = cmp.Or(c.MinBackoff, 25*time.Millisecond)
	c.MaxBackoff = cmp.Or(c.MaxBackoff, 500*time.Millisecond)
	if c.OnState == nil {
		c.OnState = func(bool) {}
	}
	return c
}

type state uint8

const (
	connecting state = iota
	up
	down
	closed
)

// call is one Do: questions with consecutive numbers, answered one by one.
type call[A any] struct {
	answers  []A
	answered []bool
	first    uint64 // number of the first question
	left     int    // questions without an answer
	deadline time.Time
	err      error         // of those that are left
	done     chan struct{} // holds one; told when nothing is left
}

type queued[Q, A any] struct {
	q      Q
	number uint64
	call   *call[A]
}

// Mux shares one stream. All its methods may be called at once.
type Mux[Q, A any] struct {
	config Config[Q, A]
	calls  sync.Pool

	mu      sync.Mutex // guards what follows; not held while sending or receiving
	state   state
	queue   []queued[Q, A]
	pending map[uint64]*call[A] // sent or queued, by number
	next    uint64
	wake    chan struct{} // holds one; told when the queue has something

	cancel    context.CancelFunc
	running   sync.WaitGroup
	closeOnce sync.Once
}

// New returns a mux that is connecting. Start opens its stream.
func New[Q, A any](c Config[Q, A]) *Mux[Q, A] {
	return &Mux[Q, A]{
		config:  c.withDefaults(),
		calls:   sync.Pool{New: func() any { return &call[A]{done: make(chan struct{}, 1)} }},
		pending: map[uint64]*call[A]{},
		wake:    make(chan struct{}, 1),
	}
}

// Start opens the stream and keeps it open until Close.
func (m *Mux[Q, A]) Start() {
	ctx, cancel := context.WithCancel(context.Background())
	m.cancel = cancel
	m.running.Go(func() { m.run(ctx) })
}

// Close ends the stream and fails what waits. It may be called twice.
func (m *Mux[Q, A]) Close(context.Context) error {
	m.closeOnce.Do(func() {
		m.enter(closed, ErrClosed, ErrLost)
		if m.cancel != nil {
			m.cancel()
		}
	})
	m.running.Wait()
	return nil
}

// Up reports whether the stream is open.
func (m *Mux[Q, A]) Up() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state == up
}

// Do asks all questions and waits for their answers until ctx ends, whose deadline is
// what Tag is told. answers[i] belongs to questions[i] if answered[i] is set; the error
// is why the others have none. The questions belong to the mux from here on.
func (m *Mux[Q, A]) Do(ctx context.Context, questions []Q, answers []A, answered []bool) error {
	c := m.calls.Get().(*call[A])
	c.answers, c.answered, c.left, c.err = answers, answered, len(questions), nil
	c.deadline, _ = ctx.Deadline()
	if err := m.enqueue(c, questions); err != nil {
		m.calls.Put(c)
		return err
	}
	select {
	case <-c.done:
	case <-ctx.Done():
		if m.forget(c, len(questions), ctx.Err()) {
			<-c.done
		}
	}
	err := c.err
	c.answers, c.answered = nil, nil
	m.calls.Put(c)
	return err
}

func (m *Mux[Q, A]) enqueue(c *call[A], questions []Q) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.state == closed:
		return ErrClosed
	case m.state == down:
		return ErrDown
	case len(m.queue)+len(questions) > m.config.MaxQueue:
		return ErrBusy
	}
	c.first = m.next
	for _, q := range questions {
		m.queue = append(m.queue, queued[Q, A]{q, m.next, c})
		m.pending[m.next] = c
		m.next++
	}
	select {
	case m.wake <- struct{}{}:
	default:
	}
	return nil
}

// forget takes a call that gave up out of everything. It reports true if the call was
// finished first, and done is told then.
func (m *Mux[Q, A]) forget(c *call[A], questions int, err error) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if c.left == 0 {
		return true
	}
	c.left, c.err = 0, err
	for i := range questions {
		delete(m.pending, c.first+uint64(i))
	}
	return false
}

// batch moves what is queued, up to the size of a message, into the given slice. What
// was given up in the queue is dropped: nobody is charged for it.
func (m *Mux[Q, A]) batch(into []Q) []Q {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	n := 0
	for ; n < len(m.queue) && len(into) < m.config.MaxBatch; n++ {
		e := m.queue[n]
		if m.pending[e.number] != e.call {
			continue
		}
		left := time.Duration(0)
		if !e.call.deadline.IsZero() {
			if left = e.call.deadline.Sub(now); left <= 0 {
				continue // its caller is about to give up
			}
		}
		m.config.Tag(e.q, e.number, left)
		into = append(into, e.q)
	}
	rest := copy(m.queue, m.queue[n:])
	clear(m.queue[rest:])
	m.queue = m.queue[:rest]
	return into
}

// deliver hands answers to their calls. One that nobody waits for any more is dropped.
func (m *Mux[Q, A]) deliver(answers []A) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, a := range answers {
		number := m.config.Number(a)
		c, ok := m.pending[number]
		if !ok {
			continue
		}
		delete(m.pending, number)
		i := number - c.first
		c.answers[i], c.answered[i] = a, true
		if c.left--; c.left == 0 {
			c.done <- struct{}{}
		}
	}
}

// enter moves to a state and fails the questions that are waiting: those that are queued
// with one error, those that were sent with the other. No error means to go on waiting.
func (m *Mux[Q, A]) enter(s state, queuedErr, sentErr error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.state == closed {
		return
	}
	m.state = s
	waiting := make(map[uint64]bool, len(m.queue))
	for _, e := range m.queue {
		waiting[e.number] = true
	}
	for number, c := range m.pending {
		err := sentErr
		if waiting[number] {
			err = queuedErr
		}
		if err == nil {
			continue
		}
		delete(m.pending, number)
		// A question that may have been acted on says more than one that was not sent.
		if c.err == nil || errors.Is(err, ErrLost) {
			c.err = err
		}
		if c.left--; c.left == 0 {
			c.done <- struct{}{}
		}
	}
}
