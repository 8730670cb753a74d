package grpcapi

import (
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/tokenring/tokenring/bucket"
	"github.com/tokenring/tokenring/node"
	tokenringv1 "github.com/tokenring/tokenring/proto/tokenring/v1"
)

func TestCheckFields(t *testing.T) {
	rule, err := bucket.NewLimit(10, time.Second, 20)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name      string
		req       *tokenringv1.CheckRequest
		forwarded []string
		want      node.Check
	}{
		{"all left out", &tokenringv1.CheckRequest{}, nil, node.Check{Key: "127.0.0.1", Cost: 1}},
		{"all", &tokenringv1.CheckRequest{Limit: "api", Key: new("user:123"), Cost: new(int64(3))}, nil, node.Check{Limit: "api", Key: "user:123", Cost: 3}},
		{"cost 0", &tokenringv1.CheckRequest{Cost: new(int64(0))}, nil, node.Check{Key: "127.0.0.1"}},
		{"refund", &tokenringv1.CheckRequest{Cost: new(int64(-3))}, nil, node.Check{Key: "127.0.0.1", Cost: -3}},
		{"inline", &tokenringv1.CheckRequest{Rate: "10/s", Burst: new(int64(20))}, nil, node.Check{Key: "127.0.0.1", Cost: 1, Rule: rule, Inline: true}},
		{"forwarded", &tokenringv1.CheckRequest{}, []string{"203.0.113.9"}, node.Check{Key: "203.0.113.9", Cost: 1}},
		{"forwarded, spoofed", &tokenringv1.CheckRequest{}, []string{"127.0.0.1", "2001:db8:1:2::3, 127.0.0.1"},
			node.Check{Key: "2001:db8:1:2::/64", Cost: 1}},
	} {
		l := newLimiter()
		_, conn := start(t, l)
		ctx := within(t)
		for _, value := range c.forwarded {
			ctx = metadata.AppendToOutgoingContext(ctx, "x-forwarded-for", value)
		}
		if _, err := tokenringv1.NewRateLimitServiceClient(conn).Check(ctx, c.req); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if got := slices.Concat(l.asked()...); !slices.Equal(got, []node.Check{c.want}) {
			t.Errorf("%s: asked %+v, want %+v", c.name, got, c.want)
		}
	}
}

func TestAnswers(t *testing.T) {
	_, conn := start(t, newLimiter())
	client := tokenringv1.NewRateLimitServiceClient(conn)
	for _, c := range []struct {
		limit string
		want  *tokenringv1.CheckResponse
	}{
		{"api", &tokenringv1.CheckResponse{Allowed: true, Burst: 20, Remaining: 19, ResetAfterMs: 600}},
		{"denied", &tokenringv1.CheckResponse{Burst: 20, RetryAfterMs: 1001, ResetAfterMs: 12000}},
		{"never", &tokenringv1.CheckResponse{Burst: 20, Remaining: 3, RetryAfterMs: -1, ResetAfterMs: -1}},
		{"partners", &tokenringv1.CheckResponse{Allowed: true, Burst: -1, Remaining: -1}},
		{"lost", &tokenringv1.CheckResponse{Burst: 20, RetryAfterMs: 1000, Degraded: true}},
	} {
		c.want.Limit, c.want.Key, c.want.Node, c.want.Id = c.limit, "k", "node-2", 7
		got, err := client.Check(within(t), &tokenringv1.CheckRequest{Limit: c.limit, Key: new("k"), Id: 7})
		if err != nil || !proto.Equal(got, c.want) {
			t.Errorf("%s: %v, %v, want %v", c.limit, got, err, c.want)
		}
	}
}

// wrong are checks with what is wrong about them, over loopback or from a stranger.
var wrong = []struct {
	req      *tokenringv1.CheckRequest
	stranger bool
	status   codes.Code
	code     string
	message  string
}{
	{&tokenringv1.CheckRequest{Limit: "apo"}, false, codes.NotFound, "unknown_limit", `limit "apo" is not defined`},
	{&tokenringv1.CheckRequest{Limit: "a b"}, false, codes.InvalidArgument, "invalid_argument",
		`limit: "a b" is not a name: want [A-Za-z0-9][A-Za-z0-9._-]{0,63}`},
	{&tokenringv1.CheckRequest{Key: new("")}, false, codes.InvalidArgument, "invalid_argument",
		"key: is empty: want 1 to 1024 bytes, or no key at all for the client's IP address"},
	{&tokenringv1.CheckRequest{Key: new(strings.Repeat("k", 1025))}, false, codes.InvalidArgument, "invalid_argument",
		"key: has 1025 bytes: want at most 1024"},
	{&tokenringv1.CheckRequest{Cost: new(int64(1e9 + 1))}, false, codes.InvalidArgument, "invalid_argument",
		"cost: 1000000001 is out of range: want a whole number from -1000000000 to 1000000000"},
	{&tokenringv1.CheckRequest{Limit: "api", Rate: "1/s"}, false, codes.InvalidArgument, "invalid_argument",
		"limit and rate exclude each other: want the name of a limit or an inline limit"},
	{&tokenringv1.CheckRequest{Burst: new(int64(1))}, false, codes.InvalidArgument, "invalid_argument",
		"burst goes with rate alone: a limit with a name has its burst too"},
	{&tokenringv1.CheckRequest{Rate: "0"}, false, codes.InvalidArgument, "invalid_argument", "burst: is needed with a rate of 0"},
	{&tokenringv1.CheckRequest{Key: new("k")}, true, codes.PermissionDenied, "permission_denied",
		"only trusted callers may send a key: 203.0.113.9 is not in --trusted-callers, and --trust-client-id is off"},
	{&tokenringv1.CheckRequest{Rate: "1/s"}, true, codes.PermissionDenied, "permission_denied",
		"only trusted callers may send an inline limit: 203.0.113.9 is not in --trusted-callers, and --trust-client-id is off"},
	{&tokenringv1.CheckRequest{Cost: new(int64(-1))}, true, codes.PermissionDenied, "permission_denied",
		"only trusted callers may send a negative cost: 203.0.113.9 is not in --trusted-callers, and --trust-client-id is off"},
}

func TestErrors(t *testing.T) {
	_, conn := start(t, newLimiter())
	client := tokenringv1.NewRateLimitServiceClient(conn)
	for _, c := range wrong {
		ctx := within(t)
		if c.stranger {
			ctx = metadata.AppendToOutgoingContext(ctx, "x-forwarded-for", "127.0.0.1, 203.0.113.9")
		}
		got, err := client.Check(ctx, c.req)
		if s := status.Convert(err); s.Code() != c.status || s.Message() != c.message {
			t.Errorf("%v: %v, %v, want %v: %s", c.req, got, err, c.status, c.message)
		}

		// In a batch the others are answered.
		fine := &tokenringv1.CheckRequest{Limit: "api", Id: 1}
		c.req.Id = 2
		res, err := client.CheckBatch(ctx, batch(fine, c.req, fine))
		if err != nil {
			t.Errorf("%v in a batch: %v", c.req, err)
			continue
		}
		want := &tokenringv1.CheckResponse{Id: 2, Error: &tokenringv1.Error{Code: c.code, Message: c.message}}
		if r := res.Results; len(r) != 3 || !r[0].Allowed || r[0].Id != 1 || !proto.Equal(r[1], want) || !r[2].Allowed {
			t.Errorf("%v in a batch: %v, want %v", c.req, res, want)
		}
	}
}

func TestBatch(t *testing.T) {
	l := newLimiter()
	_, conn := start(t, l)
	client := tokenringv1.NewRateLimitServiceClient(conn)
	res, err := client.CheckBatch(within(t), batch())
	if err != nil || len(res.Results) != 0 || len(l.asked()) != 0 {
		t.Errorf("no checks: %v, %v", res, err)
	}
	checks := slices.Repeat([]*tokenringv1.CheckRequest{{Key: new("k"), Cost: new(int64(2))}}, 1000)
	res, err = client.CheckBatch(within(t), batch(checks...))
	if err != nil || len(res.Results) != 1000 || !res.Results[999].Allowed {
		t.Errorf("1000 checks: %d answers, %v", len(res.GetResults()), err)
	}
	if asked := l.asked(); len(asked) != 1 || len(asked[0]) != 1000 {
		t.Errorf("1000 checks became %d calls", len(asked))
	}
}

// encoded returns a batch whose only check is given as it stands on the wire.
func encoded(check []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), check)
}

// unreadable are messages that no client of the generated code would send, except for
// those that are too long.
var unreadable = []struct {
	name    string
	batch   []byte
	status  codes.Code
	message string
}{
	{"key that is no UTF-8", encoded([]byte("\x12\x01\xff")), codes.InvalidArgument, "invalid UTF-8"},
	{"half a message", encoded([]byte("\x12\x05k")), codes.InvalidArgument, "cannot parse"},
	{"no message", []byte("\xff\xff\xff"), codes.InvalidArgument, "cannot parse"},
	{"1001 checks", slices.Repeat(encoded(nil), 1001), codes.InvalidArgument, "too many checks: want at most 1000"},
	{"very many checks", slices.Repeat(encoded(nil), maxMessage/2), codes.InvalidArgument, "too many checks: want at most 1000"},
	{"long broken batch", append(slices.Repeat(encoded(nil), 1000), "\x0a\x05abc"...), codes.InvalidArgument, "cannot parse"},
	{"too long", encoded(slices.Concat([]byte("\x12\xff\xff\x3f"), make([]byte, 1<<20-1))), codes.ResourceExhausted, "larger than max"},
}

func TestUnreadable(t *testing.T) {
	l := newLimiter()
	_, conn := start(t, l)
	for _, c := range unreadable {
		// A message without fields of its own sends its unknown fields as they are.
		m := new(emptypb.Empty)
		m.ProtoReflect().SetUnknown(c.batch)
		err := conn.Invoke(within(t), tokenringv1.RateLimitService_CheckBatch_FullMethodName, m, new(tokenringv1.CheckBatchResponse))
		if s := status.Convert(err); s.Code() != c.status || !strings.Contains(s.Message(), c.message) {
			t.Errorf("%s: %v, want %v with %q", c.name, err, c.status, c.message)
		}
	}
	if asked := l.asked(); len(asked) > 0 {
		t.Errorf("asked %v", asked)
	}
	if _, err := tokenringv1.NewRateLimitServiceClient(conn).Check(within(t), &tokenringv1.CheckRequest{}); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}
