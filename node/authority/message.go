package authority

import (
	"cmp"
	"fmt"
)

// An Epoch numbers one time of holding a partition. Boot is the holder's, so an epoch also
// says who held. The zero Epoch stands for nobody ever.
type Epoch struct {
	Counter uint64
	Boot    uint64
}

// Compare orders epochs: by counter, then by boot.
func (e Epoch) Compare(f Epoch) int {
	return cmp.Or(cmp.Compare(e.Counter, f.Counter), cmp.Compare(e.Boot, f.Boot))
}

// After reports whether e is newer than f.
func (e Epoch) After(f Epoch) bool { return e.Compare(f) > 0 }

// claimed and handed return the next epoch, of a claim or a handover. The counters of
// claims are even and those of handovers odd, so that a node which claims a partition while
// it is being handed over to it does not come to hold it in the same epoch.
func (e Epoch) claimed(boot uint64) Epoch { return Epoch{(e.Counter | 1) + 1, boot} }
func (e Epoch) handed(boot uint64) Epoch  { return Epoch{(e.Counter + 1) | 1, boot} }

func newest(e, f Epoch) Epoch {
	if f.After(e) {
		return f
	}
	return e
}

func (e Epoch) String() string { return fmt.Sprintf("%d/%x", e.Counter, e.Boot) }

// State is how far a member has come. It only goes forward.
type State uint8

// The states of a member.
const (
	Joining State = iota // listed, but nothing is placed on it
	Active               // partitions are placed on it
	Leaving              // hands over what it holds and takes nothing any more
	Left                 // has said goodbye
)

func (s State) String() string {
	return [...]string{"joining", "active", "leaving", "left"}[min(s, Left)]
}

// A Member is one run of a node.
type Member struct {
	Boot  uint64 // random number of the run, never 0
	ID    string // stable name, what placement hashes
	Addr  string // host:port of its peer port
	State State
}

// A Holding says that a partition is, or was, held in an epoch.
type Holding struct {
	Partition int
	Epoch     Epoch
}

// A Version tells copies of a partition apart: a newer one knows more. The zero Version is
// that of no copy.
type Version struct {
	Complete bool   // a whole pass over the partition has arrived
	Epoch    Epoch  // of the holder that it was copied from
	Seq      uint64 // of the last change of that holder that is in it
}

// Compare orders versions: a complete copy is worth more than any other, then the epoch
// and the number of the last change count.
func (v Version) Compare(w Version) int {
	if v.Complete != w.Complete {
		if v.Complete {
			return 1
		}
		return -1
	}
	return cmp.Or(v.Epoch.Compare(w.Epoch), cmp.Compare(v.Seq, w.Seq))
}

// A Message is what nodes tell each other, each kind a type of its own. Messages from one
// node to another arrive in order, or not at all once the stream between them has ended.
type Message interface{ message() }

// Hello is the first message on every stream: all that the sender knows.
type Hello struct {
	Members []Member  // the sender first, then those that are not out for it
	Held    []Holding // what the sender holds
	Last    []Epoch   // by partition, the newest epoch that the sender has heard of
}

// Announce says what the sender has come to hold, and what has become of members.
type Announce struct {
	Members []Member
	Held    []Holding
}

// Beat says that the sender is there.
type Beat struct{}

// Goodbye says that the sender has handed everything over and ends.
type Goodbye struct{}

// Handover makes the receiver the holder of partitions, in the given epochs, whose Boot is
// the receiver's. All buckets have been copied to it before. From are the epochs in which
// the sender held them.
type Handover struct {
	Members []Member
	Parts   []Holding
	From    []Epoch
}

// Accepted answers a Handover: the receiver has held the partitions since those epochs, or
// knows a newer one.
type Accepted struct{ Parts []Holding }

// Refused answers a Handover: the receiver does not take the partitions in these epochs.
type Refused struct{ Parts []Holding }

// Ask is a claim: may the sender hold these partitions, of which it knows the given last
// epochs?
type Ask struct {
	Claim   uint64 // number of the claim, given back in the answer
	Members []Member
	Parts   []Holding
}

// Answer answers an Ask.
type Answer struct {
	Claim   uint64
	Members []Member
	Parts   []Verdict
}

// A Verdict is the answer about one partition.
type Verdict struct {
	Partition int
	Yes       bool
	Last      Epoch   // newest epoch that the asked has heard of
	Copy      Version // of what lies at the asked
}

// Fetch asks for the copies of partitions that lie at the receiver.
type Fetch struct {
	Claim uint64
	Parts []int
}

// Drop lets go of copies that were copied in these epochs or earlier ones, since a newer
// one is complete elsewhere.
type Drop struct{ Parts []Holding }

func (Hello) message()    {}
func (Announce) message() {}
func (Beat) message()     {}
func (Goodbye) message()  {}
func (Handover) message() {}
func (Accepted) message() {}
func (Refused) message()  {}
func (Ask) message()      {}
func (Answer) message()   {}
func (Fetch) message()    {}
func (Drop) message()     {}
