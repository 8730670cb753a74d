package peer

import (
	"errors"
	"fmt"

	"github.com/tokenring/tokenring/node/authority"
	"github.com/tokenring/tokenring/node/keeper"
	peerv1 "github.com/tokenring/tokenring/proto/peer/v1"
	"github.com/tokenring/tokenring/ring"
)

func noteToWire(n keeper.Note) *peerv1.Note {
	switch m := n.Message.(type) {
	case nil:
		return &peerv1.Note{Kind: &peerv1.Note_Chunks{Chunks: chunksToWire(n.Chunks)}}
	case authority.Hello:
		last := make([]authority.Holding, 0, len(m.Last))
		for i, e := range m.Last {
			if e != (authority.Epoch{}) {
				last = append(last, authority.Holding{Partition: i, Epoch: e})
			}
		}
		return &peerv1.Note{Kind: &peerv1.Note_Greeting{Greeting: &peerv1.Greeting{
			Members: membersToWire(m.Members), Held: holdingsToWire(m.Held), Last: holdingsToWire(last),
		}}}
	case authority.Announce:
		return &peerv1.Note{Kind: &peerv1.Note_Announce{Announce: &peerv1.Announce{Members: membersToWire(m.Members), Held: holdingsToWire(m.Held)}}}
	case authority.Goodbye:
		return &peerv1.Note{Kind: &peerv1.Note_Goodbye{Goodbye: &peerv1.Goodbye{}}}
	case authority.Handover:
		from := make([]authority.Holding, len(m.Parts))
		for i := range from {
			from[i] = authority.Holding{Partition: m.Parts[i].Partition, Epoch: m.From[i]}
		}
		return &peerv1.Note{Kind: &peerv1.Note_Handover{Handover: &peerv1.Handover{
			Members: membersToWire(m.Members), Parts: holdingsToWire(m.Parts), From: holdingsToWire(from),
		}}}
	case authority.Accepted:
		return &peerv1.Note{Kind: &peerv1.Note_Accepted{Accepted: holdingsToWire(m.Parts)}}
	case authority.Refused:
		return &peerv1.Note{Kind: &peerv1.Note_Refused{Refused: holdingsToWire(m.Parts)}}
	case authority.Ask:
		return &peerv1.Note{Kind: &peerv1.Note_Ask{Ask: &peerv1.Ask{Claim: m.Claim, Members: membersToWire(m.Members), Parts: holdingsToWire(m.Parts)}}}
	case authority.Answer:
		return &peerv1.Note{Kind: &peerv1.Note_Answer{Answer: answerToWire(m)}}
	case authority.Fetch:
		return &peerv1.Note{Kind: &peerv1.Note_Fetch{Fetch: &peerv1.Fetch{Claim: m.Claim, Partitions: partitionsToWire(m.Parts)}}}
	case authority.Drop:
		return &peerv1.Note{Kind: &peerv1.Note_Drop{Drop: holdingsToWire(m.Parts)}}
	default: // a Beat: it says nothing but that its sender is there
		return &peerv1.Note{Kind: &peerv1.Note_Beat{Beat: &peerv1.Beat{}}}
	}
}

// noteFromWire reads a note. What it refuses is no note of this protocol.
func noteFromWire(n *peerv1.Note) (keeper.Note, error) {
	if c := n.GetChunks(); c != nil {
		chunks, err := chunksFromWire(c)
		return keeper.Note{Chunks: chunks}, err
	}
	m, err := messageFromWire(n)
	return keeper.Note{Message: m}, err
}

func messageFromWire(n *peerv1.Note) (authority.Message, error) {
	var r reader
	var m authority.Message
	switch k := n.Kind.(type) {
	case *peerv1.Note_Greeting:
		hello := authority.Hello{
			Members: r.members(k.Greeting.GetMembers()), Held: r.holdings(k.Greeting.GetHeld()),
			Last: make([]authority.Epoch, ring.Partitions),
		}
		for _, h := range r.holdings(k.Greeting.GetLast()) {
			hello.Last[h.Partition] = h.Epoch
		}
		m = hello
	case *peerv1.Note_Announce:
		m = authority.Announce{Members: r.members(k.Announce.GetMembers()), Held: r.holdings(k.Announce.GetHeld())}
	case *peerv1.Note_Beat:
		m = authority.Beat{}
	case *peerv1.Note_Goodbye:
		m = authority.Goodbye{}
	case *peerv1.Note_Handover:
		h := authority.Handover{Members: r.members(k.Handover.GetMembers()), Parts: r.holdings(k.Handover.GetParts())}
		h.From = r.epochs(h.Parts, k.Handover.GetFrom())
		m = h
	case *peerv1.Note_Accepted:
		m = authority.Accepted{Parts: r.holdings(k.Accepted)}
	case *peerv1.Note_Refused:
		m = authority.Refused{Parts: r.holdings(k.Refused)}
	case *peerv1.Note_Ask:
		m = authority.Ask{Claim: k.Ask.GetClaim(), Members: r.members(k.Ask.GetMembers()), Parts: r.holdings(k.Ask.GetParts())}
	case *peerv1.Note_Answer:
		m = r.answer(k.Answer)
	case *peerv1.Note_Fetch:
		m = authority.Fetch{Claim: k.Fetch.GetClaim(), Parts: r.partitions(k.Fetch.GetPartitions())}
	case *peerv1.Note_Drop:
		m = authority.Drop{Parts: r.holdings(k.Drop)}
	default:
		return nil, errors.New("read note: its kind is not known")
	}
	return m, r.err
}

func membersToWire(members []authority.Member) []*peerv1.Member {
	all := make([]*peerv1.Member, len(members))
	for i, m := range members {
		all[i] = &peerv1.Member{Boot: m.Boot, Id: m.ID, Addr: m.Addr, State: uint32(m.State)}
	}
	return all
}

func partitionsToWire(parts []int) []uint32 {
	all := make([]uint32, len(parts))
	for i, p := range parts {
		all[i] = uint32(p)
	}
	return all
}

func holdingsToWire(parts []authority.Holding) *peerv1.Holdings {
	h := &peerv1.Holdings{}
	at := map[uint64]uint32{}
	for _, p := range parts {
		boot, ok := at[p.Epoch.Boot]
		if !ok {
			boot = uint32(len(h.Table))
			at[p.Epoch.Boot] = boot
			h.Table = append(h.Table, p.Epoch.Boot)
		}
		h.Partitions = append(h.Partitions, uint32(p.Partition))
		h.Counters = append(h.Counters, p.Epoch.Counter)
		h.Boots = append(h.Boots, boot)
	}
	return h
}

func answerToWire(m authority.Answer) *peerv1.Answer {
	a := &peerv1.Answer{Claim: m.Claim, Members: membersToWire(m.Members)}
	var last, copies []authority.Holding
	for _, v := range m.Parts {
		last = append(last, authority.Holding{Partition: v.Partition, Epoch: v.Last})
		copies = append(copies, authority.Holding{Partition: v.Partition, Epoch: v.Copy.Epoch})
		a.Yes, a.Complete, a.Seqs = append(a.Yes, v.Yes), append(a.Complete, v.Copy.Complete), append(a.Seqs, v.Copy.Seq)
	}
	a.Last, a.Copies = holdingsToWire(last), holdingsToWire(copies)
	return a
}

// A reader reads parts of messages and remembers the first error.
type reader struct{ err error }

func (r *reader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("read note: "+format, args...)
	}
}

func (r *reader) members(list []*peerv1.Member) []authority.Member {
	var all []authority.Member
	for _, m := range list {
		if m.GetBoot() == 0 || m.GetId() == "" || m.GetState() > uint32(authority.Left) {
			r.fail("member %q with boot %x and state %d is none", m.GetId(), m.GetBoot(), m.GetState())
			return nil
		}
		all = append(all, authority.Member{Boot: m.Boot, ID: m.Id, Addr: m.Addr, State: authority.State(m.State)})
	}
	return all
}

func (r *reader) partitions(list []uint32) []int {
	if len(list) > maxParts {
		r.fail("%d partitions are named: want at most %d", len(list), maxParts)
		return nil
	}
	var all []int
	for _, p := range list {
		if p >= ring.Partitions {
			r.fail("partition %d is not below %d", p, ring.Partitions)
			return nil
		}
		all = append(all, int(p))
	}
	return all
}

func (r *reader) holdings(h *peerv1.Holdings) []authority.Holding {
	n := len(h.GetPartitions())
	if len(h.GetCounters()) != n || len(h.GetBoots()) != n {
		r.fail("columns of %d partitions, %d counters and %d boots differ", n, len(h.GetCounters()), len(h.GetBoots()))
		return nil
	}
	var all []authority.Holding
	for i, p := range r.partitions(h.GetPartitions()) {
		if int(h.Boots[i]) >= len(h.Table) {
			r.fail("boot %d is not in a table of %d", h.Boots[i], len(h.Table))
			return nil
		}
		e, err := epochFromWire(h.Counters[i], h.Table[h.Boots[i]])
		if err != nil {
			r.fail("%w", err)
			return nil
		}
		all = append(all, authority.Holding{Partition: p, Epoch: e})
	}
	return all
}

// epochs reads further epochs of the same partitions.
func (r *reader) epochs(parts []authority.Holding, h *peerv1.Holdings) []authority.Epoch {
	more := r.holdings(h)
	if len(more) != len(parts) {
		r.fail("%d epochs for %d partitions", len(more), len(parts))
		return nil
	}
	epochs := make([]authority.Epoch, len(parts))
	for i := range parts {
		if more[i].Partition != parts[i].Partition {
			r.fail("an epoch of partition %d stands beside partition %d", more[i].Partition, parts[i].Partition)
			return nil
		}
		epochs[i] = more[i].Epoch
	}
	return epochs
}

func (r *reader) answer(a *peerv1.Answer) authority.Answer {
	last := r.holdings(a.GetLast())
	copies := r.epochs(last, a.GetCopies())
	m := authority.Answer{Claim: a.GetClaim(), Members: r.members(a.GetMembers())}
	if n := len(last); len(a.GetYes()) != n || len(a.GetComplete()) != n || len(a.GetSeqs()) != n || len(copies) != n {
		r.fail("columns of an answer differ")
		return m
	}
	for i, h := range last {
		m.Parts = append(m.Parts, authority.Verdict{
			Partition: h.Partition, Yes: a.Yes[i], Last: h.Epoch,
			Copy: authority.Version{Complete: a.Complete[i], Epoch: copies[i], Seq: a.Seqs[i]},
		})
	}
	return m
}
