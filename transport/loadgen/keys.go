package loadgen

import (
	"fmt"
	"math/rand/v2"
)

// Keys are those that are asked for: Count of them, in some Spread.
type Keys struct {
	names  []string
	spread Spread
}

// A Spread is how often each key is asked for.
type Spread string

// Uniform asks for all keys alike, Zipf for the n-th one about 1/n as often as for the
// first, and Hot for one alone.
const (
	Uniform Spread = "uniform"
	Zipf    Spread = "zipf"
	Hot     Spread = "hot"
)

// zipfExponent is just above 1, below which the generator is not defined.
const zipfExponent = 1.01

// NewKeys returns so many keys that begin with prefix.
func NewKeys(prefix string, count int, spread Spread) Keys {
	if spread == Hot {
		count = 1
	}
	k := Keys{names: make([]string, count), spread: spread}
	for i := range k.names {
		k.names[i] = fmt.Sprintf("%s%d", prefix, i)
	}
	return k
}

// KeysOf returns keys to be asked for alike.
func KeysOf(names []string) Keys { return Keys{names: names, spread: Uniform} }

// draw returns what yields the keys of one caller.
func (k Keys) draw(caller uint64) func() string {
	r := rand.New(rand.NewPCG(caller, 1))
	switch {
	case len(k.names) == 1:
		return func() string { return k.names[0] }
	case k.spread == Zipf:
		z := rand.NewZipf(r, zipfExponent, 1, uint64(len(k.names)-1))
		return func() string { return k.names[z.Uint64()] }
	}
	return func() string { return k.names[r.IntN(len(k.names))] }
}
