package peer

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/tokenring/tokenring/bucket"
	"github.com/tokenring/tokenring/node/authority"
	"github.com/tokenring/tokenring/node/keeper"
	peerv1 "github.com/tokenring/tokenring/proto/peer/v1"
	"github.com/tokenring/tokenring/ring"
)

func chunksToWire(chunks []keeper.Chunk) *peerv1.Chunks {
	all := &peerv1.Chunks{Chunks: make([]*peerv1.Chunk, len(chunks))}
	for i := range chunks {
		all.Chunks[i] = chunkToWire(&chunks[i])
	}
	return all
}

// A limitOf is what buckets share; a chunk names each once.
type limitOf struct {
	name    string
	limit   bucket.Limit
	version uint64
}

func chunkToWire(c *keeper.Chunk) *peerv1.Chunk {
	w := &peerv1.Chunk{
		Kind: uint32(c.Kind), Partition: uint32(c.Partition), Epoch: epochToWire(c.Epoch),
		Seq: c.Seq, Start: c.Start, End: c.End, Number: c.Number,
		Keys: make([][]byte, 0, len(c.States)), By: make([]uint32, 0, len(c.States)), Deficits: make([]uint64, 0, len(c.States)),
	}
	rules := map[limitOf]uint32{}
	for i := range c.States {
		s := &c.States[i]
		l := limitOf{s.Name, s.Limit, s.Version}
		at, ok := rules[l]
		if !ok {
			at = uint32(len(w.Rules))
			rules[l] = at
			tokens, per := s.Limit.Rate()
			w.Rules = append(w.Rules, &peerv1.Rule{
				Limit: s.Name, Tokens: uint64(tokens), Per: uint64(per), Burst: uint64(s.Limit.Burst()), Version: s.Version,
			})
		}
		if s.Gone {
			w.Gone = append(w.Gone, uint32(i))
		}
		w.Keys, w.By, w.Deficits = append(w.Keys, []byte(s.Key)), append(w.By, at), append(w.Deficits, uint64(s.Deficit))
	}
	return w
}

func chunksFromWire(w *peerv1.Chunks) ([]keeper.Chunk, error) {
	if len(w.GetChunks()) == 0 {
		return nil, errors.New("read chunks: there are none")
	}
	chunks := make([]keeper.Chunk, len(w.Chunks))
	for i, c := range w.Chunks {
		if err := chunkFromWire(c, &chunks[i]); err != nil {
			return nil, fmt.Errorf("read chunk of partition %d: %w", c.GetPartition(), err)
		}
	}
	return chunks, nil
}

func chunkFromWire(w *peerv1.Chunk, c *keeper.Chunk) error {
	n := len(w.GetKeys())
	switch {
	case w.GetPartition() >= ring.Partitions:
		return fmt.Errorf("it is not below %d", ring.Partitions)
	case w.GetKind() > uint32(keeper.Based):
		return fmt.Errorf("kind %d is not known", w.GetKind())
	case len(w.GetBy()) != n || len(w.GetDeficits()) != n:
		return fmt.Errorf("columns of %d keys, %d rules and %d deficits differ", n, len(w.GetBy()), len(w.GetDeficits()))
	}
	rules, err := rulesFromWire(w.GetRules())
	if err != nil {
		return err
	}
	epoch, err := epochFromWire(w.Epoch.GetCounter(), w.Epoch.GetBoot())
	if err != nil {
		return err
	}
	*c = keeper.Chunk{
		Kind: keeper.ChunkKind(w.Kind), Partition: int(w.Partition), Epoch: epoch,
		Seq: w.Seq, Start: w.Start, End: w.End, Number: w.Number, States: make([]bucket.State, n),
	}
	for i, key := range w.Keys {
		switch {
		case int(w.By[i]) >= len(rules):
			return fmt.Errorf("rule %d is not in a table of %d", w.By[i], len(rules))
		case w.Deficits[i] > math.MaxInt64:
			return fmt.Errorf("a deficit of %d units is out of range", w.Deficits[i])
		}
		r := rules[w.By[i]]
		if err := validBucket(r.name, key); err != nil {
			return err
		}
		c.States[i] = bucket.State{Name: r.name, Key: string(key), Limit: r.limit, Version: r.version, Deficit: int64(w.Deficits[i])}
	}
	for _, at := range w.Gone {
		if int(at) >= n {
			return fmt.Errorf("bucket %d of %d is gone", at, n)
		}
		c.States[at].Gone = true
	}
	return nil
}

func rulesFromWire(rules []*peerv1.Rule) ([]limitOf, error) {
	all := make([]limitOf, len(rules))
	for i, r := range rules {
		if r.GetTokens() > math.MaxInt64 || r.GetPer() > math.MaxInt64 || r.GetBurst() > math.MaxInt64 {
			return nil, fmt.Errorf("limit %q is out of range", r.GetLimit())
		}
		l, err := bucket.NewLimit(int64(r.GetTokens()), time.Duration(r.GetPer()), int64(r.GetBurst()))
		if err != nil {
			return nil, err
		}
		all[i] = limitOf{r.GetLimit(), l, r.GetVersion()}
	}
	return all, nil
}

func epochToWire(e authority.Epoch) *peerv1.Epoch {
	return &peerv1.Epoch{Counter: e.Counter, Boot: e.Boot}
}

// epochFromWire refuses a counter that has come to its end: the next epoch would be an older
// one, and no partition could move any more.
func epochFromWire(counter, boot uint64) (authority.Epoch, error) {
	if counter > maxCounter {
		return authority.Epoch{}, fmt.Errorf("counter %d of an epoch is out of range: want at most %d", counter, uint64(maxCounter))
	}
	return authority.Epoch{Counter: counter, Boot: boot}, nil
}
