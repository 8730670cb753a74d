package keeper

import (
	"github.com/tokenring/tokenring/bucket"
	"github.com/tokenring/tokenring/node/authority"
)

// A Note is what one node tells another, in order: either a message about who decides, or
// buckets on their way.
type Note struct {
	Message authority.Message // nil if there are chunks
	Chunks  []Chunk
}

// ChunkKind says why buckets travel.
type ChunkKind uint8

// The kinds of chunks.
const (
	Copied  ChunkKind = iota // the holder keeps a copy up to date
	Fetched                  // a copy for a node that claims the partition
	Merged                   // what a node decided that was not the only holder
	Based                    // the base of a merge that the next holder may have to do
)

// A Chunk is some buckets of one partition.
type Chunk struct {
	Kind      ChunkKind
	Partition int
	Epoch     authority.Epoch // of the holder that the buckets are from
	Seq       uint64          // number of the last change that is in them, when End
	Start     bool            // the first of a pass over the whole partition
	End       bool            // with it, the receiver has all that the sender has
	Number    uint64          // of the claim that Fetched answers, or of the Export that is Merged
	States    []bucket.State
}

// An Outgoing is the open stream to another node. Its methods may be called at once.
type Outgoing interface {
	Send(Note) error
	Heard() (uint64, error) // waits; how many notes the other has dealt with
	End()                   // makes the other two return
}

// An Incoming is the open stream from another node. It ends when Hear returns.
type Incoming interface {
	Recv() (Note, error)
	Ack(heard uint64) error // how many notes have been dealt with
}
