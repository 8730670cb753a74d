package request

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/tokenring/tokenring/bucket"
	"github.com/tokenring/tokenring/node"
	"github.com/tokenring/tokenring/transport/identity"
)

var (
	trusted  = identity.Client{Addr: netip.MustParseAddr("127.0.0.1"), Trusted: true}
	stranger = identity.Client{Addr: netip.MustParseAddr("203.0.113.9")}
)

func TestCheck(t *testing.T) {
	rule, err := bucket.NewLimit(10, time.Second, 20)
	if err != nil {
		t.Fatal(err)
	}
	ten, err := bucket.NewLimit(10, time.Second, 10)
	if err != nil {
		t.Fatal(err)
	}
	longKey, longName := strings.Repeat("ä", bucket.MaxKeyBytes/2), strings.Repeat("n", 64)
	for _, c := range []struct {
		name   string
		req    Request
		client identity.Client
		want   node.Check
	}{
		{"all left out", Request{}, trusted, node.Check{Key: "127.0.0.1", Cost: 1}},
		{"stranger", Request{Limit: "api", Cost: new(int64(5))}, stranger, node.Check{Limit: "api", Key: "203.0.113.9", Cost: 5}},
		{"stranger looks", Request{Cost: new(int64(0))}, stranger, node.Check{Key: "203.0.113.9"}},
		{"IPv6", Request{}, identity.Client{Addr: netip.MustParseAddr("2001:db8:1:2:3::4")}, node.Check{Key: "2001:db8:1:2::/64", Cost: 1}},
		{"key", Request{Limit: "api", Key: new("user:123")}, trusted, node.Check{Limit: "api", Key: "user:123", Cost: 1}},
		{"longest key", Request{Key: &longKey}, trusted, node.Check{Key: longKey, Cost: 1}},
		{"key of one byte", Request{Key: new("\x00")}, trusted, node.Check{Key: "\x00", Cost: 1}},
		{"longest name", Request{Limit: longName}, trusted, node.Check{Limit: longName, Key: "127.0.0.1", Cost: 1}},
		{"largest cost", Request{Cost: new(int64(1e9))}, trusted, node.Check{Key: "127.0.0.1", Cost: 1e9}},
		{"smallest cost", Request{Cost: new(int64(-1e9))}, trusted, node.Check{Key: "127.0.0.1", Cost: -1e9}},
		{"inline", Request{Key: new("k"), Rate: new("10/s"), Burst: new(int64(20))}, trusted,
			node.Check{Key: "k", Cost: 1, Rule: rule, Inline: true}},
		{"inline without a burst", Request{Rate: new("10/s")}, trusted,
			node.Check{Key: "127.0.0.1", Cost: 1, Rule: ten, Inline: true}},
	} {
		if got, err := c.req.Check(c.client); got != c.want || err != nil {
			t.Errorf("%s: %+v, %v, want %+v", c.name, got, err, c.want)
		}
	}
}

func TestCheckErrors(t *testing.T) {
	const (
		noName   = `: want [A-Za-z0-9][A-Za-z0-9._-]{0,63}`
		costs    = ` is out of range: want a whole number from -1000000000 to 1000000000`
		settings = ` is not in --trusted-callers, and --trust-client-id is off`
	)
	for _, c := range []struct {
		req    Request
		client identity.Client
		code   Code
		want   string
	}{
		{Request{Limit: "api", Rate: new("1/s")}, trusted, InvalidArgument,
			"limit and rate exclude each other: want the name of a limit or an inline limit"},
		{Request{Limit: "api", Burst: new(int64(1))}, trusted, InvalidArgument,
			"burst goes with rate alone: a limit with a name has its burst too"},
		{Request{Burst: new(int64(1))}, trusted, InvalidArgument,
			"burst goes with rate alone: a limit with a name has its burst too"},
		{Request{Limit: "-api"}, trusted, InvalidArgument, `limit: "-api" is not a name` + noName},
		{Request{Limit: "a b"}, stranger, InvalidArgument, `limit: "a b" is not a name` + noName},
		{Request{Limit: "ä"}, trusted, InvalidArgument, `limit: "ä" is not a name` + noName},
		{Request{Limit: "a\nb\xff"}, trusted, InvalidArgument, `limit: "a\nb\xff" is not a name` + noName},
		{Request{Limit: strings.Repeat("x", 65)}, trusted, InvalidArgument,
			`limit: "` + strings.Repeat("x", 64) + `..." is not a name` + noName},
		{Request{Key: new("")}, trusted, InvalidArgument,
			"key: is empty: want 1 to 1024 bytes, or no key at all for the client's IP address"},
		{Request{Key: new(strings.Repeat("ä", 512) + "x")}, trusted, InvalidArgument, "key: has 1025 bytes: want at most 1024"},
		{Request{Key: new("a\xffb")}, trusted, InvalidArgument, "key: is not valid UTF-8"},
		{Request{Cost: new(int64(1e9 + 1))}, trusted, InvalidArgument, "cost: 1000000001" + costs},
		{Request{Cost: new(int64(-1e9 - 1))}, trusted, InvalidArgument, "cost: -1000000001" + costs},
		{Request{Cost: new(int64(math.MinInt64))}, trusted, InvalidArgument, "cost: -9223372036854775808" + costs},
		{Request{Cost: new(int64(math.MaxInt64))}, stranger, InvalidArgument, "cost: 9223372036854775807" + costs},
		{Request{Rate: new("0")}, trusted, InvalidArgument, "burst: is needed with a rate of 0"},
		{Request{Rate: new("1/s"), Burst: new(int64(math.MaxInt64))}, trusted, InvalidArgument,
			"burst: limit cannot be represented: burst 9223372036854775807 is too large for this rate, at most 2305843009"},

		{Request{Key: new("k")}, stranger, PermissionDenied, "only trusted callers may send a key: 203.0.113.9" + settings},
		{Request{Rate: new("1/s")}, stranger, PermissionDenied, "only trusted callers may send an inline limit: 203.0.113.9" + settings},
		{Request{Cost: new(int64(-1))}, stranger, PermissionDenied, "only trusted callers may send a negative cost: 203.0.113.9" + settings},
	} {
		got, err := c.req.Check(c.client)
		e, ok := errors.AsType[*Error](err)
		if !ok || e.Code != c.code || e.Message != c.want || got != (node.Check{}) {
			t.Errorf("%+v: %+v, %v, want %s: %s", c.req, got, err, c.code, c.want)
		}
	}
	for _, rate := range []string{"", "10", "x/s", "-1/s", "1/s\xff"} {
		_, err := (&Request{Rate: &rate}).Check(trusted)
		if e, ok := errors.AsType[*Error](err); !ok || e.Code != InvalidArgument || !strings.HasPrefix(e.Message, "rate: ") {
			t.Errorf("rate %q: %v", rate, err)
		}
	}
}

func TestAsError(t *testing.T) {
	denied := &Error{PermissionDenied, "no"}
	for _, c := range []struct {
		err  error
		want Error
	}{
		{denied, *denied},
		{fmt.Errorf("wrapped: %w", denied), *denied},
		{&node.UnknownLimitError{Name: "apo"}, Error{UnknownLimit, `limit "apo" is not defined`}},
		{fmt.Errorf("wrapped: %w", &node.UnknownLimitError{Name: "apo"}), Error{UnknownLimit, `wrapped: limit "apo" is not defined`}},
		{bucket.ErrKey, Error{InvalidArgument, "invalid key"}},
	} {
		if got := AsError(c.err); *got != c.want {
			t.Errorf("AsError(%v) = %+v, want %+v", c.err, *got, c.want)
		}
	}
}

func TestNewFigures(t *testing.T) {
	const never = bucket.Never
	decision := func(allowed bool, remaining int64, retry, reset time.Duration) bucket.Decision {
		return bucket.Decision{Allowed: allowed, Burst: 20, Remaining: remaining, RetryAfter: retry, ResetAfter: reset}
	}
	for _, c := range []struct {
		name   string
		answer node.Answer
		want   Figures
	}{
		{"allowed", node.Answer{Decision: decision(true, 19, 0, time.Second)}, Figures{20, 19, 0, time.Second}},
		{"denied", node.Answer{Decision: decision(false, 0, 1, 2)}, Figures{20, 0, 1, 2}},
		{"never", node.Answer{Decision: decision(false, 3, never, never)}, Figures{20, 3, never, never}},
		{"unlimited", node.Answer{Decision: decision(true, 7, 8, 9), Unlimited: true}, Figures{-1, -1, 0, 0}},
		{"degraded, allowed", node.Answer{Decision: decision(true, 7, 8, 9), Degraded: true}, Figures{20, 0, 0, 0}},
		{"degraded, denied", node.Answer{Decision: decision(false, 7, 0, 9), Degraded: true}, Figures{20, 0, time.Second, 0}},
		{"degraded, denied for ever", node.Answer{Decision: decision(false, 7, never, never), Degraded: true}, Figures{20, 0, time.Second, 0}},
	} {
		if got := NewFigures(&c.answer); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

func TestInUnits(t *testing.T) {
	for _, c := range []struct {
		d    time.Duration
		unit time.Duration
		want int64
	}{
		{0, time.Millisecond, 0},
		{1, time.Millisecond, 1},
		{time.Millisecond, time.Millisecond, 1},
		{time.Millisecond + 1, time.Millisecond, 2},
		{time.Second, time.Second, 1},
		{time.Second + 1, time.Second, 2},
		{bucket.Never, time.Second, -1},
		{math.MaxInt64, time.Second, 9223372037},
		{math.MaxInt64, 1, math.MaxInt64},
	} {
		if got := InUnits(c.d, c.unit); got != c.want {
			t.Errorf("InUnits(%d, %v) = %d, want %d", c.d, c.unit, got, c.want)
		}
	}
}
