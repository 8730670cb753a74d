package keeper

import (
	"sync"
	"time"

	"github.com/tokenring/tokenring/bucket"
	"github.com/tokenring/tokenring/node/authority"
)

const (
	copyEvery  = 5 * time.Millisecond // changes are sent
	noteStates = 512                  // buckets in a note at the most,
	passStates = 256                  // in one of a pass,
	noteChunks = 512                  // and chunks
	window     = 8                    // notes with buckets that are sent before the first was dealt with
	passPause  = 3                    // times as long as a note of a pass took, passes rest afterwards
)

// An outbox is what another node is to be told, while the stream to it is open.
type outbox struct {
	boot   uint64
	stream Outgoing
	poked  chan struct{} // holds one: there may be something to send
	ended  chan struct{} // closed when the stream has ended

	// What follows is guarded by the keeper's lock.
	queue   []parcel      // to be sent first, in this order
	exports []*export     // what is asked for
	due     bool          // changes are to be sent
	resting time.Duration // until when passes rest
	sent    uint64        // notes
	flying  []parcel      // sent and not dealt with, of those that somebody waits for
	loads   int           // of them with buckets
	passes  int           // and of a pass
}

// A parcel is a note with what is to be done once the other has dealt with it.
type parcel struct {
	note   Note
	loaded bool          // with buckets,
	pass   time.Duration // and of a pass, when it was sent
	number uint64        // on its stream, from 1
	begun  time.Duration // when the oldest change in it happened; 0 is none
	passed []*track      // whose pass ends with it
	paid   []*export     // of something to merge that ends with it
	heard  func()
}

// A track is one copy that is kept up to date elsewhere.
type track struct {
	partition, slot int
	to              uint64
	epoch           authority.Epoch
	start           bool // the pass is about to begin
	passing         bool
}

// An export is buckets of one partition on their way to a node that asked for them.
type export struct {
	authority.Export
	cursor int // for Store.Export
}

func (b *outbox) push(p parcel) {
	b.queue = append(b.queue, p)
	b.poke()
}

func (b *outbox) poke() {
	select {
	case b.poked <- struct{}{}:
	default:
	}
}

// Tell tells another node all that it is to hear, until the stream ends.
func (k *Keeper) Tell(boot uint64, out Outgoing) {
	box := &outbox{boot: boot, stream: out, poked: make(chan struct{}, 1), ended: make(chan struct{})}
	k.event(func() []authority.Effect {
		k.boxes[boot] = box
		return k.machine.Up(k.now(), boot)
	})
	var listening sync.WaitGroup
	listening.Go(func() {
		defer close(box.ended)
		for {
			heard, err := out.Heard()
			if err != nil {
				return
			}
			k.heard(box, heard)
		}
	})
	k.sendAll(box)
	out.End()
	listening.Wait()
	k.event(func() []authority.Effect {
		delete(k.boxes, boot)
		return k.machine.Down(k.now(), boot)
	})
}

func (k *Keeper) sendAll(box *outbox) {
	tick := time.NewTicker(copyEvery)
	defer tick.Stop()
	due := false
	for {
		for {
			p, ok := k.next(box, due)
			due = false
			if !ok {
				break
			}
			if box.stream.Send(p.note) != nil {
				return
			}
		}
		select {
		case <-k.stop:
			return
		case <-box.ended:
			return
		case <-box.poked:
		case <-tick.C:
			due = true
		}
	}
}

// next takes the next note out of an outbox, or reports that there is none for now.
func (k *Keeper) next(box *outbox, due bool) (parcel, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	box.due = box.due || due
	var p parcel
	switch {
	case len(box.queue) > 0:
		p = box.queue[0]
		box.queue[0] = parcel{}
		box.queue = box.queue[1:]
	case box.loads >= window:
		return parcel{}, false
	default:
		k.load(box, &p)
		if len(p.note.Chunks) == 0 {
			return parcel{}, false
		}
	}
	box.sent++
	p.number = box.sent
	if p.loaded = p.note.Chunks != nil; p.loaded {
		box.loads++
	}
	if p.pass > 0 {
		box.passes++
	}
	if p.loaded || p.heard != nil {
		flying := p
		flying.note = Note{} // the buckets are not needed any more
		box.flying = append(box.flying, flying)
	}
	return p, true
}

// load fills a note with buckets: those asked for, else changes, else those of passes.
func (k *Keeper) load(box *outbox, p *parcel) {
	for len(box.exports) > 0 && p.room() > 0 {
		k.addExport(p, box.exports[0])
		if p.last().End {
			box.exports = box.exports[1:]
		}
	}
	if len(p.note.Chunks) > 0 {
		return
	}
	if box.due {
		k.addPending(box, p, false)
		box.due = p.room() <= 0
	}
	if len(p.note.Chunks) == 0 && k.mayPass(box) {
		p.pass = k.now()
		k.addPending(box, p, true)
	}
}

// mayPass reports whether passes may go on. They have time, and whatever hurries waits
// behind them, in the other node too: so one note is sent after another, with rests that
// grow with what it costs. A node that leaves has no time.
func (k *Keeper) mayPass(box *outbox) bool {
	return k.leaving || box.passes == 0 && k.now() >= box.resting
}

// room is how many more buckets fit into a note.
func (p *parcel) room() int {
	if len(p.note.Chunks) >= noteChunks {
		return 0
	}
	room := noteStates
	if p.pass > 0 {
		room = passStates
	}
	for i := range p.note.Chunks {
		room -= len(p.note.Chunks[i].States)
	}
	return room
}

func (p *parcel) last() *Chunk { return &p.note.Chunks[len(p.note.Chunks)-1] }

// addPending adds what copies lack, either such that are in a pass or such that are not.
func (k *Keeper) addPending(box *outbox, p *parcel, passing bool) {
	for slot := range bucket.Slots {
		for i := range k.buckets.Pending(slot) {
			t := k.tracks[i][slot]
			if t == nil || t.to != box.boot || t.passing != passing {
				continue
			}
			room := p.room()
			if room <= 0 {
				return
			}
			k.addChanges(p, t, room)
		}
	}
}

// addChanges adds at most so many buckets that a copy lacks.
func (k *Keeper) addChanges(p *parcel, t *track, most int) {
	c := k.buckets.Changes(t.partition, t.slot, most, nil)
	p.note.Chunks = append(p.note.Chunks, Chunk{
		Kind: Copied, Partition: t.partition, Epoch: t.epoch, Seq: c.Seq, Start: t.start, End: !c.Rest, States: c.States,
	})
	t.start = false
	if !c.Rest && t.passing {
		t.passing = false
		p.passed = append(p.passed, t)
	}
	if begun := k.now() - c.Since; c.Since > 0 && (p.begun == 0 || begun < p.begun) {
		p.begun = begun
	}
}

// export queues what another node has asked for, or what it has to merge.
func (k *Keeper) export(e authority.Export) {
	if box := k.boxes[e.To]; box != nil {
		box.exports = append(box.exports, &export{Export: e, cursor: -1})
		box.poke()
	}
}

func (k *Keeper) addExport(p *parcel, e *export) {
	kind, from := Fetched, k.buckets
	if e.Merge {
		kind, from = Merged, k.stash
	}
	c := Chunk{Kind: kind, Partition: e.Partition, Epoch: e.Epoch, Seq: e.Seq, Number: e.Number, Start: e.cursor < 0}
	c.States, e.cursor = from.Export(e.Partition, e.cursor, p.room(), nil)
	c.End = e.cursor == 0
	if c.End && e.Merge {
		p.paid = append(p.paid, e)
	}
	p.note.Chunks = append(p.note.Chunks, c)
}

// heard notes how many notes the other has dealt with.
func (k *Keeper) heard(box *outbox, count uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for len(box.flying) > 0 && box.flying[0].number <= count {
		p := box.flying[0]
		box.flying[0] = parcel{}
		box.flying = box.flying[1:]
		if p.loaded {
			box.loads--
		}
		if p.pass > 0 {
			box.passes--
			box.resting = k.now() + passPause*(k.now()-p.pass)
		}
		k.settled(box, &p)
	}
	box.poke()
}

// settled does what a parcel was waited for.
func (k *Keeper) settled(box *outbox, p *parcel) {
	if p.begun > 0 {
		k.metrics.lagged(k.now(), k.now()-p.begun)
	}
	if p.heard != nil {
		p.heard()
	}
	for _, t := range p.passed {
		if k.tracks[t.partition][t.slot] == t {
			k.eventLocked(func() []authority.Effect { return k.machine.Copied(t.partition, box.boot) })
		}
	}
	for _, e := range p.paid {
		k.eventLocked(func() []authority.Effect { return k.machine.Paid(e.Partition, e.Number) })
	}
}
