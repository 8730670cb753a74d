package limits

import "github.com/tokenring/tokenring/bucket"

// A Policy says how a check is answered while nobody who could decide it can be asked.
type Policy uint8

// The failure policies.
const (
	Allow Policy = iota // let it through: the default
	Deny                // refuse it
	Local               // decide from a bucket of this node's share of the limit
	Redis               // decide from the same bucket in the configured Redis
)

// A Rule is what a check is decided by: a limit as it holds for one key. Rules are
// shared and never change.
type Rule struct {
	Name      string
	Limit     bucket.Limit
	Version   uint64 // a newer rule for the same key has a higher one
	Unlimited bool   // everything is let through; Limit means nothing
	OnFailure Policy
}
