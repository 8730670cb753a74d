// Package ring says where each partition should live.
//
// A key belongs to one of Partitions slices of the key space, by its hash. A Placement
// maps each partition to a member; it is a pure function of the set of member ids, so
// every node that knows the same set computes the same table without asking anybody.
// Consistent hashing with bounded loads (github.com/buraksezer/consistent) keeps what
// moves on a change near the least possible, and every member's share near the average.
//
//	(limit, key) ── Partition ──> 0..4092 ── Placement.Owner ──> member id
//
// A Placement never changes. A Placer makes one after another: it keeps the hash ring of
// the last set and applies the difference to it, since building a large one anew takes
// seconds. The heir of a partition is its owner in the placement without the present
// owner; Without makes that one.
//
// Nodes must agree on how placement is computed. Fingerprint is a digest of everything
// that goes into it besides the members, for nodes to compare when they meet.
package ring

import (
	"fmt"
	"slices"

	"github.com/buraksezer/consistent"
	"github.com/cespare/xxhash/v2"
)

// Partitions is the number of slices of the key space: a prime, large enough that a
// member of several hundred still has a fair share.
const Partitions = 4093

const (
	virtualNodes = 100  // points of a member on the hash ring
	load         = 1.25 // bound of a member's partitions, as a multiple of the average
	algorithm    = "consistent/1.0.0 xxhash64"
)

// Fingerprint is equal on two nodes exactly when they place partitions in the same way.
func Fingerprint() uint64 {
	return xxhash.Sum64String(fmt.Sprintf("%d %d %g %s", Partitions, virtualNodes, load, algorithm))
}

// Partition returns the partition of the bucket that a limit's name and a key make.
func Partition(limit, key string) int {
	var space [128]byte
	id := append(space[:0], limit...)
	id = append(id, 0)
	id = append(id, key...)
	return int(xxhash.Sum64(id) % Partitions)
}

// A Placement maps every partition to a member. It never changes.
type Placement struct {
	members []string // sorted
	owners  [Partitions]int16
}

// Members returns the sorted ids that the placement was made for. The slice is shared.
func (p *Placement) Members() []string { return p.members }

// Owner returns the position in Members of the partition's member, or -1 if there are no
// members.
func (p *Placement) Owner(partition int) int { return int(p.owners[partition]) }

// Count returns how many partitions the member at a position of Members has.
func (p *Placement) Count(member int) int {
	n := 0
	for _, owner := range p.owners {
		if int(owner) == member {
			n++
		}
	}
	return n
}

type member string

func (m member) String() string { return string(m) }

type hasher struct{}

func (hasher) Sum64(b []byte) uint64 { return xxhash.Sum64(b) }

// A Placer makes placements one after another. It belongs to one goroutine.
type Placer struct {
	ring    *consistent.Consistent
	members []string // sorted, what the ring holds
}

// NewPlacer returns a placer that knows no members.
func NewPlacer() *Placer {
	return &Placer{ring: consistent.New(nil, consistent.Config{
		Hasher:            hasher{},
		PartitionCount:    Partitions,
		ReplicationFactor: virtualNodes,
		Load:              load,
	})}
}

// MaxMembers is how many members a placement can have.
const MaxMembers = 1 << 14

// Place returns the placement for a set of ids, in any order and each counted once. Of
// more than MaxMembers ids the greatest are left out.
func (p *Placer) Place(ids []string) *Placement {
	want := slices.Compact(slices.Sorted(slices.Values(ids)))
	want = want[:min(len(want), MaxMembers)]
	for _, id := range p.members {
		if _, stays := slices.BinarySearch(want, id); !stays {
			p.ring.Remove(id)
		}
	}
	for _, id := range want {
		p.ring.Add(member(id)) // one that is there already is left alone
	}
	p.members = want
	return p.table()
}

// Without returns the placement for the members of the last Place but one.
func (p *Placer) Without(id string) *Placement {
	all := p.members
	i, ok := slices.BinarySearch(all, id)
	if !ok {
		return p.table()
	}
	without := p.Place(slices.Delete(slices.Clone(all), i, i+1))
	p.ring.Add(member(id))
	p.members = all
	return without
}

func (p *Placer) table() *Placement {
	t := &Placement{members: p.members}
	position := make(map[string]int16, len(p.members))
	for i, id := range p.members {
		position[id] = int16(i)
	}
	for part := range t.owners {
		if owner := p.ring.GetPartitionOwner(part); owner != nil {
			t.owners[part] = position[owner.String()]
		} else {
			t.owners[part] = -1
		}
	}
	return t
}

// Moved counts the partitions that two placements give to different members.
func Moved(from, to *Placement) int {
	n := 0
	for part := range Partitions {
		if from.ownerID(part) != to.ownerID(part) {
			n++
		}
	}
	return n
}

func (p *Placement) ownerID(part int) string {
	if i := p.owners[part]; i >= 0 {
		return p.members[i]
	}
	return ""
}
