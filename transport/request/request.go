// Package request holds what the HTTP and the gRPC front have in common, so that both
// have the same rules: what a client may ask, what it is told when it asks something
// else, and the figures of an answer.
//
//	what was sent ─ Request.Check ─> node.Check ─ Limiter ─> node.Answer ─ NewFigures ─> the wire
//	                     │                                       │
//	                     └──────────── Error: its code ──────────┘
package request

import (
	"context"
	"fmt"
	"strconv"
	"unicode/utf8"

	"github.com/tokenring/tokenring/bucket"
	"github.com/tokenring/tokenring/node"
	"github.com/tokenring/tokenring/node/limits"
	"github.com/tokenring/tokenring/transport/identity"
)

// MaxChecks is how many checks a client may send as one batch.
const MaxChecks = 1000

// A Limiter decides checks: answers[i] becomes the answer to checks[i], and those for one
// bucket are decided in order. It keeps neither slice.
type Limiter interface {
	Check(ctx context.Context, checks []node.Check, answers []node.Answer)
}

// A Request is a check as a client sent it; what it left out is nil.
type Request struct {
	Limit string // "" for the default limit
	Key   *string
	Cost  *int64  // tokens
	Rate  *string // of an inline limit
	Burst *int64  // tokens, of an inline limit
}

// Check returns the check that the client asks for, or an *Error that says why it may not.
func (r *Request) Check(client identity.Client) (node.Check, error) {
	if err := r.validate(); err != nil {
		return node.Check{}, err
	}
	if err := r.permit(client); err != nil {
		return node.Check{}, err
	}
	c := node.Check{Limit: r.Limit, Cost: 1}
	if r.Cost != nil {
		c.Cost = *r.Cost
	}
	if r.Key != nil {
		c.Key = *r.Key
	} else {
		c.Key = client.Key()
	}
	if r.Rate != nil {
		rule, err := limits.Inline(*r.Rate, r.Burst)
		if err != nil {
			return node.Check{}, Invalid("%v", err)
		}
		c.Rule, c.Inline = rule, true
	}
	return c, nil
}

func (r *Request) validate() error {
	switch {
	case r.Limit != "" && r.Rate != nil:
		return Invalid("limit and rate exclude each other: want the name of a limit or an inline limit")
	case r.Burst != nil && r.Rate == nil:
		return Invalid("burst goes with rate alone: a limit with a name has its burst too")
	case r.Limit != "" && !limits.ValidName(r.Limit):
		return Invalid("limit: %s is not a name: want [A-Za-z0-9][A-Za-z0-9._-]{0,63}", Quote(r.Limit))
	case r.Key != nil && *r.Key == "":
		return Invalid("key: is empty: want 1 to %d bytes, or no key at all for the client's IP address", bucket.MaxKeyBytes)
	case r.Key != nil && len(*r.Key) > bucket.MaxKeyBytes:
		return Invalid("key: has %d bytes: want at most %d", len(*r.Key), bucket.MaxKeyBytes)
	case r.Key != nil && !utf8.ValidString(*r.Key):
		return Invalid("key: is not valid UTF-8")
	case r.Cost != nil && (*r.Cost > bucket.MaxCost || *r.Cost < -bucket.MaxCost):
		return Invalid("cost: %d is out of range: want a whole number from -%d to %[2]d", *r.Cost, bucket.MaxCost)
	}
	return nil
}

// permit says what a caller that is not trusted may not send, and by which settings it
// could.
func (r *Request) permit(client identity.Client) error {
	var what string
	switch {
	case client.Trusted:
		return nil
	case r.Key != nil:
		what = "a key"
	case r.Rate != nil:
		what = "an inline limit"
	case r.Cost != nil && *r.Cost < 0:
		what = "a negative cost"
	default:
		return nil
	}
	return &Error{PermissionDenied, fmt.Sprintf(
		"only trusted callers may send %s: %s is not in --trusted-callers, and --trust-client-id is off", what, client.Addr)}
}

// Quote shows a client its own words, as far as an error message has room for them.
func Quote(s string) string {
	const most = 64 // bytes
	if len(s) > most {
		s = s[:most] + "..."
	}
	return strconv.Quote(s)
}
