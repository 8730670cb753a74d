package httpapi

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tokenring/tokenring/bucket"
	"github.com/tokenring/tokenring/node"
)

// Both ways of asking, field by field.
func TestCheckFields(t *testing.T) {
	rule, err := bucket.NewLimit(10, time.Second, 20)
	if err != nil {
		t.Fatal(err)
	}
	longest := strings.Repeat("k", bucket.MaxKeyBytes)
	for _, c := range []struct {
		name string
		raw  string
		want node.Check
	}{
		{"POST without a body", post("/v1/check", ""), node.Check{Key: "127.0.0.1", Cost: 1}},
		{"POST of nothing", post("/v1/check", "{}"), node.Check{Key: "127.0.0.1", Cost: 1}},
		{"POST without a length", "POST /v1/check HTTP/1.1\r\nHost: a\r\n\r\n", node.Check{Key: "127.0.0.1", Cost: 1}},
		{"POST", post("/v1/check", `{"limit":"api","key":"user:123","cost":3}`), node.Check{Limit: "api", Key: "user:123", Cost: 3}},
		{"other order, spaces", post("/v1/check", " {\r\n\t\"cost\" : -3 , \"key\":\"k\"}\n"), node.Check{Key: "k", Cost: -3}},
		{"cost 0", post("/v1/check", `{"cost":0}`), node.Check{Key: "127.0.0.1"}},
		{"escapes", post("/v1/check", `{"key":"\"\\\/\b\f\n\r\t\u00e4\ud83d\ude00\u0000ä"}`), node.Check{Key: "\"\\/\b\f\n\r\tä😀\x00ä", Cost: 1}},
		{"escapes in a name", post("/v1/check", `{"\u006bey":"k"}`), node.Check{Key: "k", Cost: 1}},
		{"inline", post("/v1/check", `{"rate":"10/s","burst":20}`), node.Check{Key: "127.0.0.1", Cost: 1, Rule: rule, Inline: true}},
		{"longest key, escaped", post("/v1/check", `{"key":"`+strings.Repeat(`\u006b`, bucket.MaxKeyBytes)+`"}`), node.Check{Key: longest, Cost: 1}},
		{"JSON", post("/v1/check", `{"key":"k"}`, "Content-Type: application/json"), node.Check{Key: "k", Cost: 1}},
		{"JSON with a charset", post("/v1/check", `{"key":"k"}`, "Content-Type: Application/JSON ; charset=utf-8"), node.Check{Key: "k", Cost: 1}},
		{"chunked", "POST /v1/check HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" +
			"5\r\n{\"key\r\n6\r\n\":\"k\"}\r\n0\r\n\r\n", node.Check{Key: "k", Cost: 1}},
		{"largest body", post("/v1/check", `{"key":"k"}`+strings.Repeat(" ", maxCheckBody-11)), node.Check{Key: "k", Cost: 1}},

		{"GET", get("/v1/check"), node.Check{Key: "127.0.0.1", Cost: 1}},
		{"GET with an empty query", get("/v1/check?"), node.Check{Key: "127.0.0.1", Cost: 1}},
		{"GET with all", get("/v1/check?limit=api&key=user:123&cost=3"), node.Check{Limit: "api", Key: "user:123", Cost: 3}},
		{"percent", get("/v1/check?&key=a%20b%2Bc+d%26%C3%A4=e&cost=-1&"), node.Check{Key: "a b+c d&ä=e", Cost: -1}},
		{"percent in a name", get("/v1/check?%6bey=k"), node.Check{Key: "k", Cost: 1}},
		{"inline by GET", get("/v1/check?rate=10/s&burst=20"), node.Check{Key: "127.0.0.1", Cost: 1, Rule: rule, Inline: true}},
		{"longest key, all percent", get("/v1/check?key=" + strings.Repeat("%6b", bucket.MaxKeyBytes)), node.Check{Key: longest, Cost: 1}},

		{"forwarded", get("/v1/check", "X-Forwarded-For: 203.0.113.9"), node.Check{Key: "203.0.113.9", Cost: 1}},
		{"forwarded, spoofed", get("/v1/check", "X-Forwarded-For: 127.0.0.1, 203.0.113.9:80"), node.Check{Key: "203.0.113.9", Cost: 1}},
		{"forwarded, spoofed in a line before", get("/v1/check", "x-forwarded-for: 127.0.0.1", "X-FORWARDED-FOR: 2001:db8:1:2::3, 127.0.0.1"),
			node.Check{Key: "2001:db8:1:2::/64", Cost: 1}},
	} {
		l := &limiter{answer: byName}
		_, addr := start(t, Config{Limiter: l})
		conn := dial(t, addr)
		conn.send(c.raw)
		if res := conn.receive("POST"); res.StatusCode != 200 {
			t.Errorf("%s: %d %s", c.name, res.StatusCode, res.body)
		}
		if got := l.checks(); !slices.Equal(got, []node.Check{c.want}) {
			t.Errorf("%s: asked %+v, want %+v", c.name, got, c.want)
		}
	}
}

// A reply in all its bytes.
func TestReplyBytes(t *testing.T) {
	_, addr := start(t, Config{})
	conn := dial(t, addr)
	conn.send(post("/v1/check", `{"limit":"api","key":"user:123","cost":1}`))
	var lines []string
	for {
		line, err := conn.r.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(line, "Date: ") {
			lines = append(lines, line)
		}
		if strings.HasSuffix(line, "}\n") {
			break
		}
	}
	want := "HTTP/1.1 200 OK\r\n" +
		"Content-Type: application/json\r\n" +
		"Content-Length: 147\r\n" +
		"Cache-Control: no-store\r\n" +
		"X-RateLimit-Limit: 20\r\n" +
		"X-RateLimit-Remaining: 19\r\n" +
		"X-RateLimit-Reset: 1\r\n" +
		"RateLimit-Policy: \"api\";q=20;w=12\r\n" +
		"RateLimit: \"api\";r=19;t=1\r\n" +
		"\r\n" +
		`{"allowed":true,"limit":"api","key":"user:123","burst":20,"remaining":19,` +
		`"retry_after_ms":0,"reset_after_ms":600,"degraded":false,"node":"node-2"}` + "\n"
	if got := strings.Join(lines, ""); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestHeaders(t *testing.T) {
	_, addr := start(t, Config{})
	for _, c := range []struct {
		target  string
		status  int
		headers string // as they are written, without those that every reply has
		body    string // from burst on
	}{
		{"/v1/check?key=k", 200,
			`X-RateLimit-Limit: 20|X-RateLimit-Remaining: 19|X-RateLimit-Reset: 1|` +
				`RateLimit-Policy: "default";q=20;w=12|RateLimit: "default";r=19;t=1`,
			`20,"remaining":19,"retry_after_ms":0,"reset_after_ms":600,"degraded":false,"node":"node-2"}`},
		{"/v1/check?limit=denied", 429,
			`X-RateLimit-Limit: 20|X-RateLimit-Remaining: 0|X-RateLimit-Reset: 12|` +
				`RateLimit-Policy: "denied";q=20;w=12|RateLimit: "denied";r=0;t=2|Retry-After: 2`,
			`20,"remaining":0,"retry_after_ms":1001,"reset_after_ms":12000,"degraded":false,"node":"node-2"}`},
		{"/v1/check?limit=soon", 429,
			`X-RateLimit-Limit: 20|X-RateLimit-Remaining: 0|X-RateLimit-Reset: 12|` +
				`RateLimit-Policy: "soon";q=20;w=12|RateLimit: "soon";r=0;t=1|Retry-After: 1`,
			`20,"remaining":0,"retry_after_ms":1,"reset_after_ms":12000,"degraded":false,"node":"node-2"}`},
		{"/v1/check?limit=never", 429,
			`X-RateLimit-Limit: 20|X-RateLimit-Remaining: 3|` +
				`RateLimit-Policy: "never";q=20|RateLimit: "never";r=3`,
			`20,"remaining":3,"retry_after_ms":-1,"reset_after_ms":-1,"degraded":false,"node":"node-2"}`},
		{"/v1/check?limit=banned", 200, // an empty bucket that is full at once has no window
			`X-RateLimit-Limit: 20|X-RateLimit-Remaining: 19|X-RateLimit-Reset: 1|` +
				`RateLimit-Policy: "banned";q=20|RateLimit: "banned";r=19;t=1`,
			`20,"remaining":19,"retry_after_ms":0,"reset_after_ms":600,"degraded":false,"node":"node-2"}`},
		{"/v1/check?rate=3/s&burst=10", 200,
			`X-RateLimit-Limit: 10|X-RateLimit-Remaining: 19|X-RateLimit-Reset: 1|` +
				`RateLimit-Policy: "inline";q=10;w=4|RateLimit: "inline";r=19;t=1`,
			`10,"remaining":19,"retry_after_ms":0,"reset_after_ms":600,"degraded":false,"node":"node-2"}`},
		{"/v1/check?rate=0&burst=10", 200,
			`X-RateLimit-Limit: 10|X-RateLimit-Remaining: 19|X-RateLimit-Reset: 1|` +
				`RateLimit-Policy: "inline";q=10|RateLimit: "inline";r=19;t=1`,
			`10,"remaining":19,"retry_after_ms":0,"reset_after_ms":600,"degraded":false,"node":"node-2"}`},
		{"/v1/check?limit=partners", 200, "",
			`-1,"remaining":-1,"retry_after_ms":0,"reset_after_ms":0,"degraded":false,"node":"node-2"}`},
		{"/v1/check?limit=lost", 200, "X-RateLimit-Degraded: true",
			`20,"remaining":0,"retry_after_ms":0,"reset_after_ms":0,"degraded":true,"node":"node-2"}`},
		{"/v1/check?limit=lost-denied", 429, "Retry-After: 1|X-RateLimit-Degraded: true",
			`20,"remaining":0,"retry_after_ms":1000,"reset_after_ms":0,"degraded":true,"node":"node-2"}`},
		{"/v1/check?limit=huge", 200, // integers of a structured field have 15 digits at the most
			`X-RateLimit-Limit: 1152921504606846976|X-RateLimit-Remaining: 576460752303423488|X-RateLimit-Reset: 4611686019|` +
				`RateLimit-Policy: "huge";q=999999999999999;w=12|RateLimit: "huge";r=999999999999999;t=4611686019`,
			`1152921504606846976,"remaining":576460752303423488,"retry_after_ms":0,"reset_after_ms":4611686018428,"degraded":false,"node":"node-2"}`},
	} {
		conn := dial(t, addr)
		conn.send(get(c.target, "Connection: close"))
		reply, err := io.ReadAll(conn.r)
		if err != nil {
			t.Fatal(err)
		}
		head, body, _ := strings.Cut(string(reply), "\r\n\r\n")
		lines := strings.Split(head, "\r\n")
		if want := fmt.Sprintf("HTTP/1.1 %d ", c.status); !strings.HasPrefix(lines[0], want) {
			t.Errorf("%s: %s, want %s", c.target, lines[0], want)
		}
		common := 0
		lines = slices.DeleteFunc(lines[1:], func(line string) bool {
			name, value, _ := strings.Cut(line, ": ")
			switch name {
			case "Date", "Content-Length", "Connection":
				return true
			case "Content-Type", "Cache-Control":
				common++
				return value == "application/json" || value == "no-store"
			}
			return false
		})
		if got := strings.Join(lines, "|"); got != c.headers || common != 2 {
			t.Errorf("%s:\n%s\nwant\n%s", c.target, got, c.headers)
		}
		if _, got, _ := strings.Cut(body, `"burst":`); got != c.body+"\n" {
			t.Errorf("%s:\n%s\nwant\n%s", c.target, got, c.body)
		}
	}
}

func TestHead(t *testing.T) {
	_, addr := start(t, Config{})
	for _, target := range []string{"/v1/check?limit=api", "/v1/check?limit=denied", "/v1/check?limit=apo", "/healthz", "/readyz"} {
		conn := dial(t, addr)
		conn.send(get(target))
		want := conn.receive("GET")
		conn.send(raw("HEAD", target, ""))
		got := conn.receive("HEAD")
		want.Header.Del("Date")
		got.Header.Del("Date")
		equal := maps.EqualFunc(got.Header, want.Header, slices.Equal)
		if got.StatusCode != want.StatusCode || got.body != "" || !equal || got.ContentLength != int64(len(want.body)) {
			t.Errorf("HEAD %s: %d %v %q, GET: %d %v", target, got.StatusCode, got.Header, got.body, want.StatusCode, want.Header)
		}
	}
}

func TestKeysInReplies(t *testing.T) {
	_, addr := start(t, Config{})
	conn := dial(t, addr)
	for _, c := range []struct{ sent, want string }{
		{`plain`, `plain`},
		{`\"\\\/`, `\"\\/`},
		{`\u0000\u001f\n\t\u007f`, `\u0000\u001f\n\u0009` + "\x7f"},
		{`äöü😀\u2028`, "äöü😀\u2028"},
		{`\ufffd<&>`, "\ufffd<&>"},
	} {
		conn.send(post("/v1/check", `{"key":"`+c.sent+`"}`))
		if res := conn.receive("POST"); !strings.Contains(res.body, `,"key":"`+c.want+`",`) {
			t.Errorf("key %s comes back in %s", c.sent, res.body)
		}
	}
}

func TestBatch(t *testing.T) {
	l := &limiter{answer: byName}
	_, addr := start(t, Config{Limiter: l})
	conn := dial(t, addr)
	conn.send(post("/v1/checks", `{"checks":[{"limit":"api","key":"a"},{"key":""},{"limit":"denied","key":"b"},
		{"limit":"apo"},{"cost":1.5},{"limit":7},7,{"key":"a","key":"b"},{"limit":"lost","cost":0},{"cost":2000000000}]}`))
	res := conn.receive("POST")
	const whole = `\" is not a whole number from -2^63 to 2^63-1"}}`
	want := `{"results":[` + strings.Join([]string{
		`{"allowed":true,"limit":"api","key":"a","burst":20,"remaining":19,"retry_after_ms":0,"reset_after_ms":600,"degraded":false,"node":"node-2"}`,
		`{"error":{"code":"invalid_argument","message":"key: is empty: want 1 to 1024 bytes, or no key at all for the client's IP address"}}`,
		`{"allowed":false,"limit":"denied","key":"b","burst":20,"remaining":0,"retry_after_ms":1001,"reset_after_ms":12000,"degraded":false,"node":"node-2"}`,
		`{"error":{"code":"unknown_limit","message":"limit \"apo\" is not defined"}}`,
		`{"error":{"code":"invalid_argument","message":"cost: \"1.5` + whole,
		`{"error":{"code":"invalid_argument","message":"limit: want a string, not a number"}}`,
		`{"error":{"code":"invalid_argument","message":"want an object, not a number"}}`,
		`{"error":{"code":"invalid_argument","message":"field key is given twice"}}`,
		`{"allowed":true,"limit":"lost","key":"127.0.0.1","burst":20,"remaining":0,"retry_after_ms":0,"reset_after_ms":0,"degraded":true,"node":"node-2"}`,
		`{"error":{"code":"invalid_argument","message":"cost: 2000000000 is out of range: want a whole number from -1000000000 to 1000000000"}}`,
	}, ",") + "]}\n"
	if res.StatusCode != 200 || res.body != want {
		t.Errorf("%d\n%s\nwant\n%s", res.StatusCode, res.body, want)
	}
	if len(l.calls) != 1 || len(l.calls[0]) != 4 {
		t.Errorf("asked %v, want four checks at once", l.calls)
	}
	for name := range res.Header {
		if strings.Contains(name, "Ratelimit") || name == "Retry-After" {
			t.Errorf("a batch has the header %s", name)
		}
	}

	conn.send(post("/v1/checks", `{"checks":[]}`))
	if res := conn.receive("POST"); res.StatusCode != 200 || res.body != `{"results":[]}`+"\n" || len(l.calls) != 1 {
		t.Errorf("no checks: %d %s, asked %d times", res.StatusCode, res.body, len(l.calls))
	}
}

func TestLargestBatch(t *testing.T) {
	l := &limiter{answer: byName}
	_, addr := start(t, Config{Limiter: l})
	conn := dial(t, addr)
	body := `{"checks":[{}` + strings.Repeat(`,{"cost":2}`, 999) + `]}`
	body += strings.Repeat(" ", maxChecksBody-len(body))
	conn.send(post("/v1/checks", body))
	if res := conn.receive("POST"); res.StatusCode != 200 || strings.Count(res.body, `"allowed":true`) != 1000 {
		t.Errorf("%d %.200s", res.StatusCode, res.body)
	}
	if got := l.checks(); len(got) != 1000 || got[0].Cost != 1 || got[999].Cost != 2 {
		t.Errorf("asked %d checks", len(got))
	}
}

// What one request left in memory that is used again must not show in the next.
func TestNothingLeftBehind(t *testing.T) {
	l := &limiter{answer: byName}
	_, addr := start(t, Config{Limiter: l})
	conn := dial(t, addr)
	conn.send(post("/v1/checks", `{"checks":[{"key":"a","cost":5},{"key":"b","rate":"1/s"}]}`))
	conn.receive("POST")
	conn.send(post("/v1/check", `{"limit":"denied","key":"c","cost":7}`, "X-Forwarded-For: 127.0.0.9"))
	conn.receive("POST")
	conn.send(post("/v1/check", ""))
	res := conn.receive("POST")
	if res.StatusCode != 200 || res.Header.Get("Retry-After") != "" || !strings.Contains(res.body, `"limit":"default","key":"127.0.0.1"`) {
		t.Errorf("%d %v %s", res.StatusCode, res.Header, res.body)
	}
	if got, want := l.checks()[3], (node.Check{Key: "127.0.0.1", Cost: 1}); got != want {
		t.Errorf("asked %+v, want %+v", got, want)
	}
}

func TestAppendStringInvalid(t *testing.T) {
	got := string(appendString(nil, "a\xffb\xe4\xf6c\""))
	if want := "\"a\ufffdb\ufffd\ufffdc\\\"\""; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

type allowAll struct{}

func (allowAll) Check(_ context.Context, checks []node.Check, answers []node.Answer) {
	for i := range checks {
		answers[i] = byName(checks[i])
	}
}

// What a check costs on one connection, without a limiter and without what the network
// and the client cost: sixteen requests are sent at once.
func BenchmarkCheck(b *testing.B) {
	const together = 16
	_, addr := start(b, Config{Limiter: allowAll{}})
	conn := dial(b, addr)
	requests := []byte(strings.Repeat(post("/v1/check", `{"limit":"api","key":"user:123","cost":1}`), together))
	// All replies are equally long: the date is the only thing in them that changes.
	length := 0
	conn.send(string(requests[:len(requests)/together]))
	for line := ""; !strings.HasPrefix(line, "{"); length += len(line) {
		var err error
		if line, err = conn.r.ReadString('\n'); err != nil {
			b.Fatal(err)
		}
	}
	replies := make([]byte, together*length)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := conn.Write(requests); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(conn.r, replies); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*together), "ns/check")
}
