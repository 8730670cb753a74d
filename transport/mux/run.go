package mux

import (
	"context"
	"math/rand/v2"
	"time"
)

// run opens the stream again and again until ctx ends.
func (m *Mux[Q, A]) run(ctx context.Context) {
	backoff := m.config.MinBackoff
	for ctx.Err() == nil {
		begin := time.Now()
		if !m.serve(ctx) {
			m.enter(down, ErrDown, ErrLost)
		} else if time.Since(begin) > m.config.MaxBackoff {
			backoff = m.config.MinBackoff
			continue // it worked for a while, so it is worth trying again at once
		}
		select {
		case <-ctx.Done():
		case <-time.After(backoff/2 + rand.N(backoff)):
		}
		backoff = min(2*backoff, m.config.MaxBackoff)
	}
}

// serve opens one stream and uses it until it ends. It reports whether it was open.
func (m *Mux[Q, A]) serve(ctx context.Context) bool {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	timeout := time.AfterFunc(m.config.OpenTimeout, cancel)
	s, err := m.config.Open(ctx)
	if !timeout.Stop() || err != nil {
		return false
	}
	m.enter(up, nil, nil)
	m.config.OnState(true)
	read := make(chan struct{})
	m.running.Go(func() {
		defer close(read)
		defer cancel()
		for {
			answers, err := s.Recv()
			if err != nil {
				return
			}
			m.deliver(answers)
		}
	})
	m.write(ctx, s)
	// Answers that arrived before the stream ended still count.
	<-read
	m.enter(connecting, nil, ErrLost)
	m.config.OnState(false)
	return true
}

// write sends what is queued until the stream ends.
func (m *Mux[Q, A]) write(ctx context.Context, s Stream[Q, A]) {
	var batch []Q
	for {
		batch = m.batch(batch[:0])
		if len(batch) == 0 {
			select {
			case <-ctx.Done():
				return
			case <-m.wake:
			}
			continue
		}
		if s.Send(batch) != nil {
			return
		}
		clear(batch)
	}
}
