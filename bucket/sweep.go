package bucket

import "time"

// The sweep visits a few shards every tick, so that it comes round all of them in
// sweepRound and never holds one lock for longer than a shard takes.
const (
	sweepTick  = 20 * time.Millisecond
	sweepRound = 20 * time.Second
)

// Sweep visits the next shards of the round and drops every bucket that is full again,
// and those that never refill and were silent for the idle time. It returns how many
// it dropped.
func (s *Store) Sweep(shards int) int {
	dropped := 0
	for range min(shards, len(s.shards)) {
		at := int((s.cursor.Add(1) - 1) % uint64(len(s.shards)))
		dropped += s.sweepShard(&s.shards[at])
	}
	return dropped
}

func (s *Store) sweepShard(sh *shard) int {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.role != holding {
		return 0 // what is frozen must not change, and copies go on their holder's word
	}
	now, dropped := s.now(), 0
	// Backwards, since removing moves the last bucket, already visited, into the gap.
	for i := len(sh.held) - 1; i >= 0; i-- {
		b := &sh.held[i]
		l := b.rule.Value().Limit
		lossless := b.fullAt(l) <= now
		if !lossless && (l.Refills() || now-b.level.at < s.idleTTL) {
			continue
		}
		s.count(lossless)
		sh.note(i, now)
		sh.remove(i)
		s.keys.Add(-1)
		dropped++
	}
	return dropped
}
