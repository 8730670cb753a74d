package test

import (
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	peerv1 "github.com/tokenring/tokenring/proto/peer/v1"
	"github.com/tokenring/tokenring/test/harness"
	"github.com/tokenring/tokenring/test/wait"
)

// handovers is a cluster of three nodes behind relays, under load on buckets of ten that do
// not refill. At each change some tokens of each are spent and some are left.
type handovers struct {
	t       *testing.T
	c       *harness.Cluster
	l       *load
	rounds  int
	copied  bool           // buckets have copies
	spent   map[string]int // before the load, by key
	granted atomic.Int64   // takes that may be made under load
}

const (
	handoverClients = 32
	spentBefore     = 3 // tokens of each bucket
)

func startHandovers(t *testing.T, replicas, short, long int) *handovers {
	t.Helper()
	h := &handovers{t: t, rounds: short, copied: replicas > 0}
	if full {
		h.rounds = long
	}
	flags := append([]string{"--replicas", strconv.Itoa(replicas)}, patient...)
	h.c = harness.Start(t, harness.Config{Nodes: 3, Flags: flags, Limits: churnLimits, Relayed: true})
	h.c.WaitSettled(h.copied)
	h.spent = map[string]int{}
	eachKey(t, h.c.Nodes(), func(key string, a harness.Answer) bool {
		if !a.Allowed {
			t.Errorf("key %s was denied with tokens left: %+v", key, a)
		}
		h.spent[key]++
		return h.spent[key] < spentBefore
	})
	var taken atomic.Int64
	look := int64(0)
	h.l = startLoad(t, handoverClients, h.c.Nodes(), func(client, i int) harness.Check {
		if n := taken.Load(); n < h.granted.Load() && taken.CompareAndSwap(n, n+1) {
			return harness.Check{Limit: "ten", Key: churnKey(int(n))}
		}
		return harness.Check{Limit: "ten", Key: churnKey(client*41 + i), Cost: &look}
	})
	return h
}

// join begins a round: a new node, which takes partitions from all others, is there but
// does not run yet.
func (h *handovers) join() *harness.Node {
	h.granted.Add(int64(churnKeys * (churnBurst - spentBefore - 2) / h.rounds))
	return h.c.Add()
}

// settle waits until each partition has one holder, and a complete copy if it is to have one.
func (h *handovers) settle(since time.Time, what string) {
	h.t.Helper()
	h.c.WaitSettled(h.copied)
	h.t.Logf("%s: settled after %v", what, time.Since(since).Round(time.Millisecond))
}

// exact ends the load and wants each bucket to give exactly ten, and no check to fail.
func (h *handovers) exact() {
	h.t.Helper()
	spent := spending(h.t, h.l.end())
	for key, n := range h.spent {
		spent[key] += n
	}
	drain(h.t, h.c, spent)
}

// hook asks a hook about each note to any of the nodes; nil ends that.
func (h *handovers) hook(hook func(to *harness.Node, from string, n *peerv1.Note) harness.Fate) {
	for _, n := range h.c.Nodes() {
		if hook == nil {
			n.Relay.SetHook(nil)
			continue
		}
		n.Relay.SetHook(func(from string, note *peerv1.Note) harness.Fate { return hook(n, from, note) })
	}
}

// node returns the node of an id.
func (h *handovers) node(id string) *harness.Node {
	all := h.c.Nodes()
	return all[slices.IndexFunc(all, func(n *harness.Node) bool { return n.ID == id })]
}

// lossesEach is how many acknowledgements are lost between any two nodes in a row.
const lossesEach = 4

// The acknowledgements of handovers get lost with the streams that they are on, every other
// one together with the stream of the handover: when a node joins, and when it leaves. Each
// sender finds out what has become of its handover, and nothing is allowed twice.
func TestHandoverAcknowledgementLost(t *testing.T) {
	h := startHandovers(t, 1, 2, 20)
	for range h.rounds {
		n := h.join()
		joining := h.lose()
		begin := time.Now()
		n.Start()
		h.settle(begin, n.ID+" joined")
		joining.report(t)

		leaving := h.lose()
		begin = time.Now()
		n.Leave()
		h.settle(begin, n.ID+" left")
		leaving.report(t)
	}
	h.exact()
}

// losses are acknowledgements that get lost.
type losses struct {
	mu      sync.Mutex // guards what follows
	between map[[2]string]int
	notes   int
	parts   int // in them
	cut     int // streams of handovers that were cut too
	offers  map[offer]int
}

// An offer is that of a partition in an epoch, which belongs to who is to hold it.
type offer struct {
	partition     uint32
	counter, boot uint64
}

func offersIn(of *peerv1.Holdings) []offer {
	all := make([]offer, len(of.GetPartitions()))
	for i, p := range of.GetPartitions() {
		all[i] = offer{p, of.Counters[i], of.Table[of.Boots[i]]}
	}
	return all
}

func (h *handovers) lose() *losses {
	s := &losses{between: map[[2]string]int{}, offers: map[offer]int{}}
	h.hook(func(to *harness.Node, from string, n *peerv1.Note) harness.Fate {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, o := range offersIn(n.GetHandover().GetParts()) {
			s.offers[o]++
		}
		parts, pair := len(n.GetAccepted().GetPartitions()), [2]string{from, to.ID}
		if parts == 0 || s.between[pair] == lossesEach {
			return harness.Pass
		}
		s.between[pair]++
		s.notes, s.parts = s.notes+1, s.parts+parts
		if s.between[pair]%2 == 0 && h.node(from).Relay.Cut(to.ID) {
			s.cut++
		}
		return harness.Break
	})
	return s
}

func (s *losses) report(t *testing.T) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	again := 0
	for _, times := range s.offers {
		if times > 1 {
			again++
		}
	}
	t.Logf("%d acknowledgements of %d partitions lost between %d pairs of nodes, %d streams of handovers cut too; of %d offers %d came again",
		s.notes, s.parts, len(s.between), s.cut, len(s.offers), again)
	if len(s.between) < 3 || s.cut < 3 {
		t.Error("want losses and cuts between three pairs of nodes")
	}
}

// Each handover comes twice in a row, and once more when its receiver has held the
// partitions for a while, and when it does not hold them any more. It is answered as it was
// before each time, and changes nothing.
func TestHandoverTwice(t *testing.T) {
	h := startHandovers(t, 1, 1, 10)
	for range h.rounds {
		first, second := h.join(), h.c.Add()
		r := h.repeat()
		begin := time.Now()
		first.Start()
		h.settle(begin, first.ID+" joined")
		r.again(t, "held")
		begin = time.Now()
		second.Start()
		h.settle(begin, second.ID+" joined")
		r.again(t, "partly moved on")
		h.settle(time.Now(), "repeated")

		begin = time.Now()
		second.Leave()
		h.settle(begin, second.ID+" left")
		r.again(t, "moved on and partly back")
		h.settle(time.Now(), "repeated")
		begin = time.Now()
		first.Leave()
		h.settle(begin, first.ID+" left")
	}
	h.exact()
}

// A repeated is a handover that was delivered and is delivered again.
type repeated struct {
	from string
	to   *harness.Node
	note *peerv1.Note
}

// repeats are handovers that come again, and what is said to them.
type repeats struct {
	h *handovers

	mu       sync.Mutex // guards what follows
	notes    []repeated
	accepted map[offer]int // how often
	refused  map[offer]int
}

// repeat delivers each handover twice, and remembers it.
func (h *handovers) repeat() *repeats {
	r := &repeats{h: h, accepted: map[offer]int{}, refused: map[offer]int{}}
	h.hook(func(to *harness.Node, from string, n *peerv1.Note) harness.Fate {
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, o := range offersIn(n.GetAccepted()) {
			r.accepted[o]++
		}
		for _, o := range offersIn(n.GetRefused()) {
			r.refused[o]++
		}
		if n.GetHandover() == nil {
			return harness.Pass
		}
		r.notes = append(r.notes, repeated{from, to, n})
		return harness.Twice
	})
	return r
}

// again delivers once more every handover whose sender and receiver still run, and waits
// until all are answered as they were before.
func (r *repeats) again(t *testing.T, what string) {
	t.Helper()
	r.mu.Lock()
	notes := slices.Clone(r.notes)
	before := [2]map[offer]int{maps.Clone(r.accepted), maps.Clone(r.refused)}
	r.mu.Unlock()
	var offers []offer
	sent := 0
	for _, n := range notes {
		if !n.to.Running() || !r.h.node(n.from).Running() {
			continue
		}
		if !n.to.Relay.Repeat(n.from, n.note) {
			t.Errorf("%s has no stream to %s", n.from, n.to.ID)
			continue
		}
		sent++
		offers = append(offers, offersIn(n.note.GetHandover().GetParts())...)
	}
	wait.For(t, harness.Slow, "answers to repeated handovers", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return !slices.ContainsFunc(offers, func(o offer) bool {
			return r.accepted[o]+r.refused[o] == before[0][o]+before[1][o]
		})
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	changed, refused := 0, 0
	for _, o := range offers {
		if before[1][o] > 0 {
			refused++
		}
		if r.accepted[o] > before[0][o] && before[1][o] > 0 || r.refused[o] > before[1][o] && before[0][o] > 0 {
			changed++
		}
	}
	t.Logf("%s: %d handovers of %d partitions came again, %d had been refused; %d answers changed", what, sent, len(offers), refused, changed)
	if sent == 0 || changed > 0 {
		t.Error("want repeated handovers, each answered as it was before")
	}
}
