package node

import (
	"fmt"
	"time"

	"github.com/tokenring/tokenring/bucket"
	"github.com/tokenring/tokenring/node/limits"
)

// A Check is what a client asks: may this key take so many tokens of this limit? Whoever
// builds it has made sure that the client may ask for this key, and that key and cost are
// within bounds.
type Check struct {
	Limit string       // name of the limit, "" for the default one; not read when Inline
	Key   string       // who is being limited
	Cost  int64        // tokens: 0 looks, below 0 gives back
	Rule  bucket.Limit // the limit itself, when Inline
	// Inline says that the check brought its limit along instead of naming one.
	Inline bool
}

// An Answer is what the client hears. Every check gets one, whatever died: an Err is the
// client's own mistake.
type Answer struct {
	bucket.Decision
	Limit     string // name of the limit, or InlineLimit
	Key       string
	Node      string        // id of the node that decided
	Unlimited bool          // the limit lets everything through; the decision holds no figures
	FillTime  time.Duration // of the limit: in which an empty bucket fills, or bucket.Never
	Degraded  bool          // the failure policy answered, since no holder could be asked in time
	Err       error
}

// Names that answers give to limits, see package limits.
const (
	DefaultLimit = limits.DefaultName
	InlineLimit  = limits.InlineName
	UnknownLimit = limits.UnknownName
)

// An UnknownLimitError says that a check named a limit that is not defined.
type UnknownLimitError struct{ Name string }

func (e *UnknownLimitError) Error() string {
	return fmt.Sprintf("limit %q is not defined", e.Name)
}

// inlineName is what the bucket of an inline limit goes by. No limit can have this name.
func inlineName(l bucket.Limit) string {
	tokens, per := l.Rate()
	return fmt.Sprintf("%s %d/%d %d", InlineLimit, tokens, per.Nanoseconds(), l.Burst())
}
