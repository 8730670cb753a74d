// Package peer is how nodes of one cluster talk: each dials every other one and keeps two
// streams open, one on which it asks and the other answers, and one on which it tells who
// decides and moves buckets, and the other acknowledges. They have a connection each, so
// that buckets on their way hold up no check.
//
//	asker: Pool ──> mux, one for each other boot ──> stream ── hello, checks ──>
//	asked: Server <── hello, outcomes ── Node.Take <──────────────────────────
//
//	teller: Pool ── hello, notes ──> Server ── Keeper.Hear
//	        Keeper.Tell <── how many were dealt with ──┘
//
// A stream opens with a hello from both sides. The asker says which boot it is looking
// for; the asked answers with its own and ends the stream if it is not the one, so that
// nothing that is meant for a node that died reaches the one that took over its address.
// A hello is also how a starting node finds out whether another one runs under its id.
package peer

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/tokenring/tokenring/bucket"
	"github.com/tokenring/tokenring/node"
	peerv1 "github.com/tokenring/tokenring/proto/peer/v1"
	"github.com/tokenring/tokenring/ring"
)

// Bounds of what another node may name. Honest nodes stay far below: a stream that goes
// beyond is none of this protocol, and what it says would spread from here.
const (
	maxName    = 128     // bytes of a limit's name, as buckets go by it
	maxCounter = 1 << 62 // of an epoch
	maxChecks  = 512     // in a message, what the mux sends at once

	// maxParts is how many partitions a message names: each hardly ever more than once.
	maxParts = 2 * ring.Partitions
)

// validBucket returns what is wrong with the name of a limit and a key, nil for none.
func validBucket(name string, key []byte) error {
	switch {
	case len(name) > maxName || strings.Contains(name, "\x00"):
		return fmt.Errorf("the name of a limit has %d bytes or a zero byte: want at most %d and none", len(name), maxName)
	case len(key) > bucket.MaxKeyBytes:
		return fmt.Errorf("a key has %d bytes: want at most %d", len(key), bucket.MaxKeyBytes)
	}
	return nil
}

func toWire(t *bucket.Take) *peerv1.Check {
	tokens, per := t.Limit.Rate()
	return &peerv1.Check{
		Limit: t.Name, Key: []byte(t.Key), Cost: t.Cost, Charge: t.Charge, Version: t.Version,
		Tokens: uint64(tokens), Per: uint64(per), Burst: uint64(t.Limit.Burst()),
	}
}

// fromWire reads a check. The limit of the check before it spares the arithmetic when it
// is the same one, as it nearly always is.
func fromWire(c *peerv1.Check, before bucket.Limit) (bucket.Take, error) {
	if c.Cost > bucket.MaxCost || c.Cost < -bucket.MaxCost {
		return bucket.Take{}, fmt.Errorf("cost %d is out of range", c.Cost)
	}
	if err := validBucket(c.Limit, c.Key); err != nil {
		return bucket.Take{}, err
	}
	t := bucket.Take{Name: c.Limit, Key: string(c.Key), Cost: c.Cost, Charge: c.Charge, Version: c.Version, Limit: before}
	tokens, per := before.Rate()
	if uint64(tokens) == c.Tokens && uint64(per) == c.Per && uint64(before.Burst()) == c.Burst {
		return t, nil
	}
	var err error
	t.Limit, err = bucket.NewLimit(int64(c.Tokens), time.Duration(c.Per), int64(c.Burst))
	return t, err
}

func outcomeToWire(seq uint64, o *bucket.Outcome) *peerv1.Outcome {
	if moved, ok := errors.AsType[*node.MovedError](o.Err); ok {
		return &peerv1.Outcome{Seq: seq, Error: moved.Error(), Moved: epochToWire(moved.To)}
	}
	if o.Err != nil {
		return &peerv1.Outcome{Seq: seq, Error: o.Err.Error()}
	}
	return &peerv1.Outcome{
		Seq: seq, Allowed: o.Allowed, Burst: uint64(o.Burst), Remaining: uint64(o.Remaining),
		RetryAfterNs: int64(o.RetryAfter), ResetAfterNs: int64(o.ResetAfter),
	}
}

// An undecidedError is what another node says when it could not decide.
type undecidedError string

func (e undecidedError) Error() string { return "undecided: " + string(e) }

func outcomeFromWire(o *peerv1.Outcome) bucket.Outcome {
	if o.Moved != nil {
		to, err := epochFromWire(o.Moved.GetCounter(), o.Moved.GetBoot())
		if err != nil {
			return bucket.Outcome{Err: undecidedError(err.Error())}
		}
		return bucket.Outcome{Err: &node.MovedError{To: to}}
	}
	if o.Error != "" {
		return bucket.Outcome{Err: undecidedError(o.Error)}
	}
	return bucket.Outcome{Decision: bucket.Decision{
		Allowed: o.Allowed, Burst: int64(o.Burst), Remaining: int64(o.Remaining),
		RetryAfter: time.Duration(o.RetryAfterNs), ResetAfter: time.Duration(o.ResetAfterNs),
	}}
}
