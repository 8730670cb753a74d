// Package mux lets very many callers share one stream of questions and answers.
//
//	Do ──> queue ──> writer ── Send, up to MaxBatch at once ──> stream
//	Do <── pending <── reader ── Recv <──────────────────────── stream
//
// Batching comes from load, without a timer: the writer sends whatever is queued, and
// while it is busy sending, more is queued. Each question has a number, its answer
// carries the same one, and so answers may come in any order.
//
// Calls take turns: a message takes a few questions of each call in the queue, so one
// question among many calls of a thousand waits for a turn of each and not for all they
// ask. The questions of one call are sent in their order. The queue needs no bound of its
// own, since what is in it belongs to callers that wait, for no longer than their time.
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
	MaxTurn     int           // questions of one call in a turn; 16
	OpenTimeout time.Duration // 1 s
	MinBackoff  time.Duration // between attempts to open; 25 ms
	MaxBackoff  time.Duration // 500 ms
	OnState     func(up bool) // called when the stream is up and when it has ended
}

func (c Config[Q, A]) withDefaults() Config[Q, A] {
	c.MaxBatch = cmp.Or(c.MaxBatch, 512)
	c.MaxTurn = cmp.Or(c.MaxTurn, 16)
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
type call[Q, A any] struct {
	questions []Q
	answers   []A
	answered  []bool
	first     uint64 // number of the first question
	sent      int    // questions that were sent
	left      int    // questions without an answer; none when the caller has given up
	queued    bool   // in the queue
	deadline  time.Time
	err       error         // of those that are left
	done      chan struct{} // holds one; told when nothing is left
}

// Mux shares one stream. All its methods may be called at once.
type Mux[Q, A any] struct {
	config Config[Q, A]
	calls  sync.Pool

	mu      sync.Mutex // guards what follows; not held while sending or receiving
	state   state
	queue   []*call[Q, A]
	pending map[uint64]*call[Q, A] // of questions that were sent, by number
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
		calls:   sync.Pool{New: func() any { return &call[Q, A]{done: make(chan struct{}, 1)} }},
		pending: map[uint64]*call[Q, A]{},
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
	c := m.calls.Get().(*call[Q, A])
	*c = call[Q, A]{questions: questions, answers: answers, answered: answered, left: len(questions), done: c.done}
	c.deadline, _ = ctx.Deadline()
	if err := m.enqueue(c); err != nil {
		m.calls.Put(c)
		return err
	}
	select {
	case <-c.done:
	case <-ctx.Done():
		if m.forget(c, ctx.Err()) {
			<-c.done
		}
	}
	m.mu.Lock()
	err, queued := c.err, c.queued
	m.mu.Unlock()
	if !queued { // else the writer comes across it and drops it
		m.calls.Put(c)
	}
	return err
}

func (m *Mux[Q, A]) enqueue(c *call[Q, A]) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.state == closed:
		return ErrClosed
	case m.state == down:
		return ErrDown
	}
	c.first, c.queued = m.next, true
	m.next += uint64(len(c.questions))
	m.queue = append(m.queue, c)
	select {
	case m.wake <- struct{}{}:
	default:
	}
	return nil
}

// forget lets a call go whose caller has given up. It reports true if the call was
// finished first, and done is told then.
func (m *Mux[Q, A]) forget(c *call[Q, A], err error) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if c.left == 0 {
		return true
	}
	c.left, c.err = 0, err
	for i := range c.sent {
		delete(m.pending, c.first+uint64(i))
	}
	return false
}

// batch moves what is queued into the given slice, up to the size of a message: a turn of
// each call, again and again. What was given up in the queue is dropped, so that nobody is
// charged for it.
func (m *Mux[Q, A]) batch(into []Q) []Q {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	n := 0
	for ; n < len(m.queue) && len(into) < m.config.MaxBatch; n++ {
		c := m.queue[n]
		left := time.Duration(0)
		if !c.deadline.IsZero() {
			left = c.deadline.Sub(now)
		}
		if c.left == 0 || left < 0 {
			c.queued = false // its caller has given up, or is about to
			continue
		}
		turn := min(m.config.MaxTurn, m.config.MaxBatch-len(into), len(c.questions)-c.sent)
		for range turn {
			number := c.first + uint64(c.sent)
			m.config.Tag(c.questions[c.sent], number, left)
			into = append(into, c.questions[c.sent])
			m.pending[number] = c
			c.sent++
		}
		if c.queued = c.sent < len(c.questions); c.queued {
			m.queue = append(m.queue, c)
		}
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

// enter moves to a state and fails the questions that are waiting: those that were not
// sent with one error, those that were with the other. No error means to go on waiting.
func (m *Mux[Q, A]) enter(s state, unsentErr, sentErr error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.state == closed {
		return
	}
	m.state = s
	if sentErr != nil {
		for number, c := range m.pending {
			delete(m.pending, number)
			c.fail(1, sentErr)
		}
	}
	if unsentErr != nil {
		for _, c := range m.queue {
			c.queued = false
			if c.left > 0 {
				c.fail(len(c.questions)-c.sent, unsentErr)
			}
		}
		clear(m.queue)
		m.queue = m.queue[:0]
	}
}

// fail gives up on some questions. That one may have been acted on says more than that
// others were not sent.
func (c *call[Q, A]) fail(questions int, err error) {
	if c.err == nil || errors.Is(err, ErrLost) {
		c.err = err
	}
	if c.left -= questions; c.left == 0 {
		c.done <- struct{}{}
	}
}
