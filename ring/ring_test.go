package ring

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

func ids(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("node-%d", i+1)
	}
	return out
}

func equal(a, b *Placement) bool {
	return slices.Equal(a.members, b.members) && a.owners == b.owners
}

func TestPlacementDependsOnTheSetAlone(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{1, 2, 3, 10, 40} {
		want := NewPlacer().Place(ids(n))
		for range 5 {
			placer := NewPlacer()
			joining := append(ids(n), "stays-a-while", "leaves-first")
			rng.Shuffle(len(joining), func(i, j int) { joining[i], joining[j] = joining[j], joining[i] })
			for i := range joining {
				placer.Place(joining[:i+1])
			}
			leaving := slices.DeleteFunc(slices.Clone(joining), func(id string) bool { return id == "leaves-first" })
			placer.Place(leaving)
			got := placer.Place(append(ids(n), ids(n)...)) // repeated ids count once
			if !equal(got, want) {
				t.Fatalf("%d members joining in the order %v: another placement than of a new ring", n, joining)
			}
		}
	}
}

func TestPlacementWithoutMembers(t *testing.T) {
	placer := NewPlacer()
	empty := placer.Place(nil)
	if got := empty.Owner(7); got != -1 {
		t.Errorf("owner among no members = %d, want -1", got)
	}
	one := placer.Place(ids(1))
	if got := one.Count(0); got != Partitions {
		t.Errorf("a lone member has %d partitions, want %d", got, Partitions)
	}
	if again := placer.Place(nil); !equal(again, empty) {
		t.Error("the placement without members differs after a member has left")
	}
}

// The bounds are those of consistent hashing with bounded loads: nobody has more than
// load times the average, and a change moves little more than the share of who came or
// went.
func TestBalanceAndMovement(t *testing.T) {
	for _, n := range []int{3, 10, 100} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			placer := NewPlacer()
			before := placer.Place(ids(n))
			bound := int(math.Ceil(float64(Partitions) / float64(n) * load))
			most, least := 0, Partitions
			for i := range n {
				c := before.Count(i)
				most, least = max(most, c), min(least, c)
			}
			if most > bound || least == 0 {
				t.Errorf("a member has %d partitions and another %d, want at most %d and at least one", most, least, bound)
			}

			joined := placer.Place(append(ids(n), "late"))
			left := placer.Place(ids(n - 1))
			for _, c := range []struct {
				change string
				moved  int
				ideal  float64
			}{
				{"join", Moved(before, joined), float64(Partitions) / float64(n+1)},
				{"leave", Moved(before, left), float64(before.Count(slices.Index(before.members, fmt.Sprintf("node-%d", n))))},
			} {
				t.Logf("%d members: a %s moves %.2f %% of the partitions, ideal %.2f %%", n, c.change,
					100*float64(c.moved)/Partitions, 100*c.ideal/Partitions)
				if float64(c.moved) > 1.35*c.ideal+0.005*Partitions {
					t.Errorf("%d members: a %s moves %d partitions, ideal %.0f", n, c.change, c.moved, c.ideal)
				}
			}
			t.Logf("%d members: a member has %.2f to %.2f of the average", n,
				float64(least)*float64(n)/Partitions, float64(most)*float64(n)/Partitions)
		})
	}
}

func TestHeirOwnsWhenTheOwnerIsGone(t *testing.T) {
	placer := NewPlacer()
	all := placer.Place(ids(5))
	for _, gone := range ids(5) {
		heirs := placer.Without(gone)
		if want := NewPlacer().Place(slices.DeleteFunc(ids(5), func(id string) bool { return id == gone })); !equal(heirs, want) {
			t.Fatalf("without %s: not the placement of the other four", gone)
		}
		for part := range Partitions {
			if all.ownerID(part) == gone && heirs.ownerID(part) == gone {
				t.Fatalf("partition %d: %s is its own heir", part, gone)
			}
		}
	}
	if again := placer.Place(ids(5)); !equal(again, all) {
		t.Error("asking for heirs changed the placement")
	}
	if same := placer.Without("unheard-of"); !equal(same, all) {
		t.Error("the placement without a stranger differs")
	}
}

func TestPartitionSpreadsKeys(t *testing.T) {
	const keys = 400_000
	var counts [Partitions]int
	for i := range keys {
		counts[Partition("api", fmt.Sprintf("203.0.113.%d", i))]++
	}
	// A fair throw has a standard deviation of about ten around 98.
	for part, n := range counts {
		if n < 30 || n > 180 {
			t.Errorf("partition %d has %d of %d keys, an even share is %d", part, n, keys, keys/Partitions)
		}
	}
}

func TestPartitionTellsLimitFromKey(t *testing.T) {
	if Partition("ab", "c") == Partition("a", "bc") {
		t.Error(`("ab", "c") and ("a", "bc") are in one partition, so the two parts are not kept apart`)
	}
	long := strings.Repeat("k", 1024)
	if got := Partition("api", long); got < 0 || got >= Partitions {
		t.Errorf("partition of a long key = %d", got)
	}
}

func BenchmarkPartition(b *testing.B) {
	for b.Loop() {
		Partition("api", "203.0.113.77")
	}
}

// What one join costs at the size of the cluster: a member is added to a ring that is
// already built, and the table is made.
func BenchmarkPlaceAfterJoin(b *testing.B) {
	for _, n := range []int{10, 100} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			placer := NewPlacer()
			few, more := ids(n), ids(n+1)
			placer.Place(few)
			for b.Loop() {
				placer.Place(more)
				b.StopTimer()
				placer.Place(few)
				b.StartTimer()
			}
		})
	}
}
