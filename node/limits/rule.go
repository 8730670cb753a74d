package limits

import (
	"fmt"
	"slices"

	"github.com/tokenring/tokenring/bucket"
)

// A Policy says how a check is answered while nobody who could decide it can be asked.
type Policy uint8

// The failure policies.
const (
	Allow Policy = iota // let it through: the default
	Deny                // refuse it
	Local               // decide from a bucket of this node's share of the limit
	Redis               // decide from the same bucket in the configured Redis
)

var policies = []string{Allow: "allow", Deny: "deny", Local: "local", Redis: "redis"}

// ParsePolicy reads the name of a policy.
func ParsePolicy(s string) (Policy, error) {
	p := slices.Index(policies, s)
	if p < 0 {
		return Allow, fmt.Errorf("%s is not a failure policy: want allow, deny, local or redis", quote(s))
	}
	return Policy(p), nil
}

func (p Policy) String() string {
	if int(p) < len(policies) {
		return policies[p]
	}
	return fmt.Sprintf("policy %d", uint8(p))
}

// A Rule is what a check is decided by: a limit as it holds for one key. Rules are
// shared and never change.
type Rule struct {
	Name      string
	Limit     bucket.Limit
	Version   uint64 // a newer rule for the same key has a higher one
	Unlimited bool   // everything is let through; Limit means nothing
	OnFailure Policy
	// Identify is the header by which gateways tell clients apart, in its canonical form,
	// or "" for the client's IP.
	Identify string
}
