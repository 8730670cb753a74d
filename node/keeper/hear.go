package keeper

import (
	"errors"

	"github.com/tokenring/tokenring/node/authority"
)

// A hearing is an open stream from another node.
type hearing struct {
	boot  uint64
	notes chan received
	over  chan struct{} // closed when it was cut, or Hear has returned
	cut   bool          // what was read from it counts no more; guarded by the keeper's lock
}

type received struct {
	note Note
	err  error
}

var errCut = errors.New("the stream was cut, since what its sender told does not count for now")

// end cuts a stream. The keeper's lock is held.
func (h *hearing) end() {
	if !h.cut {
		h.cut = true
		close(h.over)
	}
}

// Hear listens to another node, until the stream ends or is cut. A new stream from the same
// boot cuts the old one.
func (k *Keeper) Hear(boot uint64, in Incoming) error {
	h := &hearing{boot: boot, notes: make(chan received), over: make(chan struct{})}
	if !k.welcome(h, in) {
		return errCut
	}
	err := k.listen(h, in)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.hearings[boot] == h {
		k.forgetHearing(h)
	}
	h.end()
	return err
}

// welcome begins to read a stream, unless the keeper is closed.
func (k *Keeper) welcome(h *hearing, in Incoming) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return false
	}
	if old := k.hearings[h.boot]; old != nil {
		old.end()
		k.forgetHearing(old)
	}
	k.hearings[h.boot] = h
	k.running.Go(func() { h.receive(in) })
	return true
}

// forgetHearing tells the machine that no more will come on a stream.
func (k *Keeper) forgetHearing(h *hearing) {
	delete(k.hearings, h.boot)
	k.eventLocked(func() []authority.Effect { return k.machine.Ended(k.now(), h.boot) })
}

// receive reads a stream to its end. It ends soon after Hear has, which ends the stream.
func (h *hearing) receive(in Incoming) {
	for {
		n, err := in.Recv()
		select {
		case h.notes <- received{n, err}:
		case <-h.over:
			return
		}
		if err != nil {
			return
		}
	}
}

// listen deals with one note after another and acknowledges each.
func (k *Keeper) listen(h *hearing, in Incoming) error {
	for count := uint64(1); ; count++ {
		select {
		case <-h.over:
			return errCut
		case r := <-h.notes:
			if r.err != nil {
				return r.err
			}
			if !k.deal(h, r.note) {
				return errCut
			}
		}
		if err := in.Ack(count); err != nil {
			return err
		}
	}
}

// deal deals with a note, unless its stream was cut.
func (k *Keeper) deal(h *hearing, n Note) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.noticeStop()
	if h.cut {
		return false
	}
	if n.Message != nil {
		k.eventLocked(func() []authority.Effect { return k.machine.Hear(k.now(), h.boot, n.Message) })
		return true
	}
	if !k.machine.Hears(h.boot) {
		return false // buckets count as little before a greeting as anything else
	}
	for i := range n.Chunks {
		switch c := &n.Chunks[i]; c.Kind {
		case Copied:
			k.takeCopy(h.boot, c)
		case Fetched:
			k.takeFetched(h.boot, c)
		case Merged:
			k.takeMerge(h.boot, c)
		case Based:
			k.takeBase(h.boot, c)
		}
	}
	return true
}

func (k *Keeper) takeCopy(from uint64, c *Chunk) {
	if k.machine.TakesCopy(from, c.Partition, c.Epoch, c.Seq, c.Start, c.End) {
		k.install(c)
	}
}

// install puts buckets into a copy. A pass over the whole partition replaces what there was.
func (k *Keeper) install(c *Chunk) {
	i := c.Partition
	if c.Start {
		k.inPass[i] = true
		k.buckets.Begin(i)
	}
	k.buckets.Install(i, c.States)
	if c.End && k.inPass[i] {
		k.inPass[i] = false
		k.buckets.Complete(i)
	}
}

// takeBase keeps the base of a merge for the handover that it goes before.
func (k *Keeper) takeBase(from uint64, c *Chunk) {
	if !k.machine.TakesBase(from, c.Partition, c.Epoch) {
		return
	}
	if c.Start {
		delete(k.offered, c.Partition)
	}
	if len(c.States) > 0 {
		k.offered[c.Partition] = k.buckets.Rebase(k.offered[c.Partition], c.States)
	}
}

func (k *Keeper) takeFetched(from uint64, c *Chunk) {
	if !k.machine.TakesFetched(from, c.Partition, c.Number) {
		return
	}
	k.install(c)
	if c.End {
		k.eventLocked(func() []authority.Effect { return k.machine.Fetched(from, c.Partition, c.Number) })
	}
}

// takeMerge merges what another node has decided, or sets it aside for the holder.
func (k *Keeper) takeMerge(from uint64, c *Chunk) {
	i := c.Partition
	if k.machine.TakesMerge(from, i) {
		k.buckets.Merge(i, c.States, k.bases[i])
		if c.End {
			delete(k.bases, i)
			k.eventLocked(func() []authority.Effect { return k.machine.Merged(i) })
		}
		return
	}
	k.stash.Merge(i, c.States, nil)
	if c.End {
		k.eventLocked(func() []authority.Effect { return k.machine.Owe(i) })
	}
}
