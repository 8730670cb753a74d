package authority

// Role is what a node is for a partition.
type Role uint8

// The roles. Only a node that Holds decides.
const (
	None     Role = iota // somebody else decides, or nobody
	Claiming             // has asked all others whether it may hold the partition
	Holds                // decides
	Frozen               // was deciding a moment ago and is handing over, or merging
	Paused               // was deciding before this process stood still
)

func (r Role) String() string {
	return [...]string{"none", "claiming", "holding", "frozen", "paused"}[r]
}

// holds reports whether nobody else may hold the partition.
func (r Role) holds() bool { return r >= Holds }

// Cause says why a role has changed, for those who count.
type Cause uint8

// The causes.
const (
	Claimed  Cause = iota + 1 // nobody held the partition, or whoever did is out
	Received                  // by a handover
	Resumed                   // after a refusal, a merge or a pause
	Offered                   // to the next holder
	Given                     // the next holder has it
	Yielded                   // to a holder in a newer epoch
	Halted                    // this process stood still
)

// An Effect is what has to be done after an event, in order.
type Effect interface{ effect() }

// Send sends a message on the stream to a boot, if it is open. Before a Handover, all that
// has changed in its partitions is sent.
type Send struct {
	To      uint64
	Message Message
}

// SetRole makes the buckets of a partition decide (Holds), wait (Frozen, Paused) or lie
// as a copy (None). Claiming is told to nobody.
type SetRole struct {
	Partition int
	Role      Role
	Epoch     Epoch
	Cause     Cause
}

// Forget drops the copy of a partition.
type Forget struct{ Partition int }

// Track keeps a copy of a held partition up to date at a boot, in one of two slots. Whole
// begins with a pass over everything; otherwise the boot has all there is. The end of the
// pass, once the boot has dealt with it, is reported to Copied.
type Track struct {
	Partition, Slot int
	To              uint64
	Epoch           Epoch
	Whole           bool
}

// Untrack ends what Track began.
type Untrack struct {
	Partition, Slot int
	To              uint64
}

// Stash sets aside what lies here of a partition, for the holder that prevailed.
type Stash struct{ Partition int }

// MergeStash merges it here and lets go of it.
type MergeStash struct{ Partition int }

// Unstash lets go of it, since the holder has it.
type Unstash struct{ Partition int }

// Export sends what lies here of a partition to a boot that claims it, or, as a Merge, what
// was stashed to the holder. That it was dealt with is reported to Paid.
type Export struct {
	To        uint64
	Partition int
	Epoch     Epoch
	Seq       uint64
	Number    uint64 // of the claim, or for Paid
	Merge     bool
}

// Snapshot remembers the copy of a partition as it is now, since its holder has fallen
// silent and may have gone on deciding: the base of a merge.
type Snapshot struct{ Partition int }

// Route sends checks of a partition to a boot, 0 being nobody.
type Route struct {
	Partition int
	To        uint64
	Epoch     Epoch
}

// Dial says that Peers has changed.
type Dial struct{}

// Cut ends the stream from a boot: what may still arrive on it does not count.
type Cut struct{ From uint64 }

// Reset ends all streams, since this process has stood still.
type Reset struct{}

// Activate tells the cluster that this node is active.
type Activate struct{}

func (Send) effect()       {}
func (SetRole) effect()    {}
func (Forget) effect()     {}
func (Track) effect()      {}
func (Untrack) effect()    {}
func (Export) effect()     {}
func (Stash) effect()      {}
func (MergeStash) effect() {}
func (Unstash) effect()    {}
func (Snapshot) effect()   {}
func (Route) effect()      {}
func (Dial) effect()       {}
func (Cut) effect()        {}
func (Reset) effect()      {}
func (Activate) effect()   {}
