package bucket

// A State is one bucket on its way to another store.
type State struct {
	Name    string // of the limit
	Key     string
	Limit   Limit
	Version uint64 // of Limit
	Deficit int64  // units below full; above the capacity it is a debt, of one capacity at the most
	Gone    bool   // the bucket was dropped; nothing else but its names counts then
}
