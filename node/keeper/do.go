package keeper

import (
	"time"

	"github.com/tokenring/tokenring/bucket"
	"github.com/tokenring/tokenring/node/authority"
)

// do carries out what follows from an event, in order. The lock is held.
func (k *Keeper) do(effects []authority.Effect) {
	for _, e := range effects {
		switch e := e.(type) {
		case authority.Send:
			k.send(e)
		case authority.SetRole:
			k.setRole(e)
		case authority.Route:
			k.routes[e.Partition].Store(&e)
			k.moved = true
		case authority.Track:
			k.tracks[e.Partition][e.Slot] = &track{partition: e.Partition, slot: e.Slot, to: e.To, epoch: e.Epoch, start: e.Whole, passing: e.Whole}
			k.buckets.Track(e.Partition, e.Slot, e.Whole)
		case authority.Untrack:
			k.tracks[e.Partition][e.Slot] = nil
			k.buckets.Untrack(e.Partition, e.Slot)
		case authority.Forget:
			k.buckets.Forget(e.Partition)
		case authority.Export:
			k.export(e)
		case authority.Stash:
			k.setAside(e.Partition)
		case authority.MergeStash:
			k.mergeStash(e.Partition)
		case authority.Unstash:
			k.stash.Forget(e.Partition)
		case authority.Snapshot:
			k.bases[e.Partition] = k.buckets.Snapshot(e.Partition)
		case authority.Cut:
			if h := k.hearings[e.From]; h != nil {
				h.end()
			}
		case authority.Reset:
			k.reset()
		case authority.Dial:
			k.poke()
		case authority.Activate:
			k.active = true
			k.poke()
		}
	}
}

// setRole gives a partition of the store its role.
func (k *Keeper) setRole(e authority.SetRole) {
	i := e.Partition
	k.moved, k.inPass[i] = true, false
	if since := k.frozen[i]; since != 0 {
		k.metrics.freezes.Observe((k.now() - since).Seconds())
		k.frozen[i] = 0
	}
	switch e.Role {
	case authority.Holds:
		k.buckets.Hold(i)
		if base := k.offered[i]; base != nil && e.Cause == authority.Received {
			k.bases[i] = base
		}
		delete(k.offered, i)
	case authority.Frozen:
		k.buckets.Freeze(i)
		k.frozen[i] = k.now()
	case authority.Paused:
		k.buckets.Freeze(i)
	default:
		k.buckets.Release(i)
		if e.Cause != authority.Yielded { // then what was decided since the base is set aside
			delete(k.bases, i)
		}
	}
	k.note(e)
}

// news are the partitions that have changed hands since the last report.
type news struct {
	claimed, failedOver, received, given, yielded int
	last                                          time.Duration
}

func (k *Keeper) note(e authority.SetRole) {
	n := &k.news
	switch e.Cause {
	case authority.Claimed:
		n.claimed++
		k.metrics.claims.Inc()
		if e.Epoch.Counter > firstClaim {
			n.failedOver++
			k.metrics.failovers.Inc()
		}
	case authority.Received:
		n.received++
		k.metrics.moved.in.Add(float64(k.buckets.Len(e.Partition)))
	case authority.Given:
		n.given++
		k.metrics.moved.out.Add(float64(k.buckets.Len(e.Partition)))
	case authority.Yielded:
		n.yielded++
	default:
		return
	}
	n.last = k.now()
}

// firstClaim is the counter of a partition that nobody has held before.
const firstClaim = 2

// report logs what has changed hands, once it has calmed down.
func (k *Keeper) report() {
	n := k.news
	if n == (news{}) || k.now()-n.last < 5*tickEvery {
		return
	}
	k.news = news{}
	for _, of := range []struct {
		event string
		count int
	}{
		{"partitions claimed for the first time", n.claimed - n.failedOver},
		{"partitions taken over from a node that is gone", n.failedOver},
		{"partitions received from other nodes", n.received},
		{"partitions handed over to other nodes", n.given},
		{"partitions given up to another holder", n.yielded},
	} {
		if of.count > 0 {
			k.config.Logger.Info(of.event, "partitions", of.count)
		}
	}
}

// reset ends all streams.
func (k *Keeper) reset() {
	for _, h := range k.hearings {
		h.end()
	}
	for _, box := range k.boxes {
		box.stream.End()
	}
}

// send puts a message into an outbox, a handover after the last changes of its partitions.
func (k *Keeper) send(e authority.Send) {
	box := k.boxes[e.To]
	if box == nil {
		return // its stream has just ended; the machine is about to hear of it
	}
	if h, ok := e.Message.(authority.Handover); ok {
		for _, part := range h.Parts {
			k.pushTail(box, part.Partition)
		}
	}
	box.push(parcel{note: Note{Message: e.Message}})
}

// pushTail puts all that a copy lacks into an outbox.
func (k *Keeper) pushTail(box *outbox, partition int) {
	for _, t := range k.tracks[partition] {
		if t == nil || t.to != box.boot {
			continue
		}
		for more := true; more; {
			var p parcel
			k.addChanges(&p, t, noteStates)
			if more = !p.last().End; !more {
				k.addBase(box, &p, t)
			}
			box.push(p)
		}
	}
}

// addBase adds the base of a merge that is still to come, an empty one if there is none, to
// the last changes. What is too much for one note goes before them.
func (k *Keeper) addBase(box *outbox, p *parcel, t *track) {
	base := Chunk{Kind: Based, Partition: t.partition, Epoch: t.epoch, Start: true, States: k.buckets.Based(k.bases[t.partition])}
	for len(base.States) > noteStates {
		part := base
		part.States, base.States, base.Start = base.States[:noteStates], base.States[noteStates:], false
		box.push(parcel{note: Note{Chunks: []Chunk{part}}})
	}
	p.note.Chunks = append(p.note.Chunks, base)
}

// setAside moves what was decided here of a partition to what has to be merged elsewhere.
// The base of it, if there is one, is here and not there, where the other history went on.
func (k *Keeper) setAside(partition int) {
	defer delete(k.bases, partition)
	for cursor, states := -1, []bucket.State(nil); cursor != 0; {
		states, cursor = k.buckets.Export(partition, cursor, noteStates, states[:0])
		k.buckets.Beyond(states, k.bases[partition])
		k.stash.Merge(partition, states, nil)
	}
}

// mergeStash merges that here, since this node holds the partition now.
func (k *Keeper) mergeStash(partition int) {
	for cursor, states := -1, []bucket.State(nil); cursor != 0; {
		states, cursor = k.stash.Export(partition, cursor, noteStates, states[:0])
		k.buckets.Merge(partition, states, k.bases[partition])
	}
	k.stash.Forget(partition)
}
