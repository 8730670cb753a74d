// Package bucket holds token buckets: the exact arithmetic of one bucket, and a store of
// very many of them in memory.
//
// A bucket is one (limit, key) pair. It is refilled when somebody asks, by exactly what
// the time since the last question was worth: a Limit counts in units so small that a
// nanosecond is worth a whole number of them, so the moment of the last refill can move
// to now without losing a fraction. The state is two integers, (units, at).
//
//	Take ── partition ──> shard: lock, read the clock, find, adopt a newer limit,
//	                             refill, decide, charge, unlock
//
// The store has one shard for each partition, each with its own lock. A shard is an
// index (open addressing over a seeded hash, so that nobody can choose colliding keys)
// into a dense slice of buckets. The slice is what makes the other duties cheap: the
// sweep walks it a shard at a time, eviction picks a random place in it, and removing
// moves the last bucket into the gap.
//
// Only buckets that miss something are held. A full bucket says nothing that its limit
// does not, so it is dropped without loss; one that never refills is dropped after a
// time of silence. At the cap the store samples a few buckets and drops the one that
// would be full soonest, so a flood of new keys evicts itself and a new client is never
// refused. Keys counts the places in use: an insertion takes a place before it holds a
// lock, so the cap holds at every moment and no two shards are ever locked together.
//
// A partition is held, frozen or a copy, and only one that is held decides; that is read
// under the same lock as the bucket. Up to two sinks note what copies of a partition at
// other nodes lack, so that it moves while it goes on deciding:
//
//	holder: Track ── Changes, again and again ──> copy: Begin, Install ..., Complete
//	holder: Freeze ── Changes, the last ──> copy: Install, Hold      holder: Release
//
// Two histories of the same buckets, of two nodes that both decided while they could not
// reach each other, are folded into one by Merge.
package bucket

import "errors"

// ErrKey is wrapped by every error about a key.
var ErrKey = errors.New("invalid key")

// MaxKeyBytes is the longest key, in bytes.
const MaxKeyBytes = 1024

// A Take is one check as a store sees it: the rule travels with it, because the node
// that was asked resolved the limit's name and the store knows no names.
type Take struct {
	Partition int    // of the bucket, below the store's number of shards
	Name      string // of the limit; together with Key it names the bucket
	Key       string
	Limit     Limit
	Version   uint64 // of Limit; a bucket adopts only a newer one
	Cost      int64  // tokens: 0 looks, below 0 gives back
	// Charge takes the tokens whether the bucket has them or not, because they were
	// spent already while the bucket could not be asked.
	Charge bool
}

// An Outcome is what a store answers: a decision, or why there is none.
type Outcome struct {
	Decision
	Err error
}
