package httpapi

import (
	"strconv"
	"strings"
	"testing"

	"github.com/tokenring/tokenring/bucket"
	"github.com/tokenring/tokenring/transport/identity"
)

const (
	notWhole = ` is not a whole number from -2^63 to 2^63-1`
	fields5  = `: want limit, key, cost, rate or burst`
)

func TestBadBodies(t *testing.T) {
	for _, c := range []struct{ body, want string }{
		{`{`, `malformed JSON: ends after 1 bytes, want a string`},
		{`[]`, `want an object, not a list`},
		{`"api"`, `want an object, not a string`},
		{`null`, `want an object, not null`},
		{`5`, `want an object, not a number`},
		{` `, `malformed JSON: ends after 1 bytes, want a value`},
		{`limit=api`, `malformed JSON at byte 0: want a value`},
		{"\xef\xbb\xbf{}", `malformed JSON at byte 0: want a value`},
		{`{}{}`, `malformed JSON at byte 2: want nothing more`},
		{`{} x`, `malformed JSON at byte 3: want nothing more`},
		{`{"key":"k",}`, `malformed JSON at byte 11: want a string`},
		{`{,}`, `malformed JSON at byte 1: want a string`},
		{`{"key" "k"}`, `malformed JSON at byte 7: want a colon`},
		{`{"key":}`, `malformed JSON at byte 7: want a value`},
		{`{"key":"k" "cost":1}`, `malformed JSON at byte 11: want a comma or }`},
		{`{key:"k"}`, `malformed JSON at byte 1: want a string`},
		{`{'key':'k'}`, `malformed JSON at byte 1: want a string`},
		{`{"key":"k`, `malformed JSON: ends after 9 bytes, want the end of a string`},
		{`{"key":"k"`, `malformed JSON: ends after 10 bytes, want a comma or }`},
		{"{\"key\":\"a\nb\"}", `malformed JSON at byte 9: want no control character in a string`},
		{"{\"key\":\"a\x00\"}", `malformed JSON at byte 9: want no control character in a string`},
		{`{"key":"\x"}`, `malformed JSON at byte 8: want an escape that stands for a character`},
		{`{"key":"\u00g0"}`, `malformed JSON at byte 8: want an escape that stands for a character`},
		{`{"key":"\u00e"}`, `malformed JSON at byte 8: want an escape that stands for a character`},
		{`{"key":"\ud83d"}`, `malformed JSON at byte 14: want an escape that stands for a character`},
		{`{"key":"\ud83dx"}`, `malformed JSON at byte 14: want an escape that stands for a character`},
		{`{"key":"\ud83d\u0041"}`, `malformed JSON at byte 14: want an escape that stands for a character`},
		{`{"key":"\ude00\ud83d"}`, `malformed JSON at byte 14: want an escape that stands for a character`},
		{`{"key":"\`, `malformed JSON at byte 8: want an escape that stands for a character`},
		{"{} // all defaults", `malformed JSON at byte 3: want nothing more`},
		{"{\"key\":\"a\xffb\"}", `the body is not valid UTF-8`},
		{"{\"key\":\"\xed\xa0\x80\"}", `the body is not valid UTF-8`},

		{`{"lim":"api"}`, `unknown field "lim"` + fields5},
		{`{"Limit":"api"}`, `unknown field "Limit"` + fields5},
		{`{"":1}`, `unknown field ""` + fields5},
		{`{"\n\u0000":1}`, `unknown field "\n\x00"` + fields5},
		{`{"` + strings.Repeat("x", 70) + `":1}`, `unknown field "` + strings.Repeat("x", 64) + `..."` + fields5},
		{`{"key":"a","key":"b"}`, `field key is given twice`},
		{`{"key":"a","k\u0065y":"a"}`, `field key is given twice`},
		{`{"cost":1,"cost":[{"a":1}]}`, `field cost is given twice`},

		{`{"limit":5}`, `limit: want a string, not a number`},
		{`{"key":123}`, `key: want a string, not a number`},
		{`{"key":null}`, `key: want a string, not null`},
		{`{"key":["a",{"b":null}]}`, `key: want a string, not a list`},
		{`{"key":{"a":[true,false,-1.5e+3]}}`, `key: want a string, not an object`},
		{`{"rate":10}`, `rate: want a string, not a number`},
		{`{"cost":"1"}`, `cost: want a whole number, not a string`},
		{`{"cost":true}`, `cost: want a whole number, not true`},
		{`{"cost":null}`, `cost: want a whole number, not null`},
		{`{"burst":{}}`, `burst: want a whole number, not an object`},
		{`{"cost":1.5}`, `cost: "1.5"` + notWhole},
		{`{"cost":1.0}`, `cost: "1.0"` + notWhole},
		{`{"cost":1e3}`, `cost: "1e3"` + notWhole},
		{`{"cost":9223372036854775808}`, `cost: "9223372036854775808"` + notWhole},
		{`{"cost":` + strings.Repeat("9", 100) + `}`, `cost: "` + strings.Repeat("9", 64) + `..."` + notWhole},
		{`{"cost":01}`, `malformed JSON at byte 9: want a comma or }`},
		{`{"cost":+1}`, `malformed JSON at byte 8: want a value`},
		{`{"cost":-}`, `malformed JSON at byte 9: want a digit`},
		{`{"cost":1.}`, `malformed JSON at byte 10: want a digit`},
		{`{"cost":.5}`, `malformed JSON at byte 8: want a value`},
		{`{"cost":1e}`, `malformed JSON at byte 10: want a digit`},
		{`{"cost":0x10}`, `malformed JSON at byte 9: want a comma or }`},
		{`{"cost":NaN}`, `malformed JSON at byte 8: want a value`},
		{`{"key":` + strings.Repeat("[", 10000) + strings.Repeat("]", 10000) + `}`,
			`malformed JSON at byte 39: want values that are nested less deeply`},
		{`{"key":tru}`, `malformed JSON at byte 7: want a value`},
		{`{"key":[1,]}`, `malformed JSON at byte 10: want a value`},

		{`{"cost":1000000001}`, `cost: 1000000001 is out of range: want a whole number from -1000000000 to 1000000000`},
		{`{"key":""}`, `key: is empty: want 1 to 1024 bytes, or no key at all for the client's IP address`},
		{`{"key":"` + strings.Repeat("k", 1025) + `"}`, `key: has 1025 bytes: want at most 1024`},
		{`{"limit":"a/b"}`, `limit: "a/b" is not a name: want [A-Za-z0-9][A-Za-z0-9._-]{0,63}`},
		{`{"limit":"api","rate":"1/s"}`, `limit and rate exclude each other: want the name of a limit or an inline limit`},
		{`{"burst":5}`, `burst goes with rate alone: a limit with a name has its burst too`},
		{`{"rate":"0"}`, `burst: is needed with a rate of 0`},
		{`{"rate":"1/s","burst":-1}`, `burst: -1 is not a burst: want a whole number of tokens, 0 or more`},
		{`{"rate":"1/s","burst":9223372036854775807}`,
			`burst: limit cannot be represented: burst 9223372036854775807 is too large for this rate, at most 2305843009`},
	} {
		l := &limiter{answer: byName}
		_, addr := start(t, Config{Limiter: l})
		conn := dial(t, addr)
		conn.send(post("/v1/check", c.body))
		conn.receive("POST").wantError(t, c.body, 400, "invalid_argument", c.want)
		if len(l.calls) != 0 {
			t.Errorf("%.80s: was decided", c.body)
		}
	}
}

func TestBadBatches(t *testing.T) {
	for _, c := range []struct{ body, want string }{
		{``, `malformed JSON: ends after 0 bytes, want {`},
		{`[]`, `malformed JSON at byte 0: want {`},
		{`{}`, `field checks is missing: want a list of checks`},
		{`{"checks":null}`, `malformed JSON at byte 10: want [`},
		{`{"checks":{}}`, `malformed JSON at byte 10: want [`},
		{`{"checks":[],"checks":[]}`, `field checks is given twice`},
		{`{"checks":[],"key":"k"}`, `unknown field "key": want checks`},
		{`{"checks":[{}]`, `malformed JSON: ends after 14 bytes, want a comma or }`},
		{`{"checks":[{}]}]`, `malformed JSON at byte 15: want nothing more`},
		{`{"checks":[{},]}`, `malformed JSON at byte 14: want a value`},
		{`{"checks":[{},{"lim":"api"}]}`, `unknown field "lim"` + fields5},
		{`{"checks":[{"key":"a"},{"key":"b]}`, `malformed JSON: ends after 34 bytes, want the end of a string`},
		{"{\"checks\":[{},{\"key\":\"\xff\"}]}", `the body is not valid UTF-8`},
		{`{"checks":[{}` + strings.Repeat(",{}", 1000) + `]}`, `too many checks: want at most 1000`},
		{`{"checks":[{}` + strings.Repeat(",{}", 100_000) + `]}`, `too many checks: want at most 1000`},
	} {
		l := &limiter{answer: byName}
		_, addr := start(t, Config{Limiter: l})
		conn := dial(t, addr)
		conn.send(post("/v1/checks", c.body))
		conn.receive("POST").wantError(t, c.body[:min(len(c.body), 80)], 400, "invalid_argument", c.want)
		if len(l.calls) != 0 {
			t.Errorf("%.80s: was decided", c.body)
		}
	}
}

func TestBadQueries(t *testing.T) {
	for _, c := range []struct{ raw, want string }{
		{get("/v1/check?lim=api"), `unknown parameter "lim"` + fields5},
		{get("/v1/check?Key=k"), `unknown parameter "Key"` + fields5},
		{get("/v1/check?=k"), `unknown parameter ""` + fields5},
		{get("/v1/check?key=a&key=a"), `parameter key is given twice`},
		{get("/v1/check?key=a&%6bey=b"), `parameter key is given twice`},
		{get("/v1/check?limit=&limit="), `parameter limit is given twice`},
		{get("/v1/check?key=%zz"), `key: "%zz" is no percent-encoding`},
		{get("/v1/check?key=%e"), `key: "%e" is no percent-encoding`},
		{get("/v1/check?k%y=a"), `the query has "k%y", which is no percent-encoding`},
		{get("/v1/check?key=a%ffb"), `key: is not valid UTF-8`},
		{get("/v1/check?key="), `key: is empty: want 1 to 1024 bytes, or no key at all for the client's IP address`},
		{get("/v1/check?key"), `key: is empty: want 1 to 1024 bytes, or no key at all for the client's IP address`},
		{get("/v1/check?key=" + strings.Repeat("k", 1025)), `key: has 1025 bytes: want at most 1024`},
		{get("/v1/check?cost="), `cost: ""` + notWhole},
		{get("/v1/check?cost=1.5"), `cost: "1.5"` + notWhole},
		{get("/v1/check?cost=%2B5"), `cost: "+5"` + notWhole},
		{get("/v1/check?cost=05"), `cost: "05"` + notWhole},
		{get("/v1/check?cost=-0"), `cost: "-0"` + notWhole},
		{get("/v1/check?cost=one"), `cost: "one"` + notWhole},
		{get("/v1/check?cost=1%00"), `cost: "1\x00"` + notWhole},
		{get("/v1/check?cost=-1000000001"), `cost: -1000000001 is out of range: want a whole number from -1000000000 to 1000000000`},
		{get("/v1/check?limit=a%0ab"), `limit: "a\nb" is not a name: want [A-Za-z0-9][A-Za-z0-9._-]{0,63}`},
		{raw("GET", "/v1/check", `{"key":"k"}`), `a check that is sent with GET stands in the query: want no body`},
		{post("/v1/check?key=k", ""), `a check that is sent with POST stands in the body: want no query`},
		{post("/v1/checks?key=k", `{"checks":[]}`), `a check that is sent with POST stands in the body: want no query`},
	} {
		l := &limiter{answer: byName}
		_, addr := start(t, Config{Limiter: l})
		conn := dial(t, addr)
		conn.send(c.raw)
		name := strings.SplitN(c.raw, " HTTP", 2)[0]
		conn.receive("POST").wantError(t, name, 400, "invalid_argument", c.want)
		if len(l.calls) != 0 {
			t.Errorf("%s: was decided", name)
		}
	}
}

// Everything but 400, and what makes it so.
func TestOtherErrors(t *testing.T) {
	const stranger = `: 203.0.113.9 is not in --trusted-callers, and --trust-client-id is off`
	fromStranger := "X-Forwarded-For: 203.0.113.9"
	long := strings.Repeat("x", maxCheckBody)
	for _, c := range []struct {
		name, raw     string
		status        int
		code, message string
		allow         string
	}{
		{"key", get("/v1/check?key=k", fromStranger), 403, "permission_denied", "only trusted callers may send a key" + stranger, ""},
		{"spoofed", get("/v1/check?key=k", "X-Forwarded-For: 127.0.0.1, 203.0.113.9"), 403, "permission_denied",
			"only trusted callers may send a key" + stranger, ""},
		{"inline", post("/v1/check", `{"rate":"1/s"}`, fromStranger), 403, "permission_denied", "only trusted callers may send an inline limit" + stranger, ""},
		{"refund", post("/v1/check", `{"cost":-1}`, fromStranger), 403, "permission_denied", "only trusted callers may send a negative cost" + stranger, ""},
		{"limit", get("/v1/check?limit=apo"), 404, "unknown_limit", `limit "apo" is not defined`, ""},
		{"path", get("/v1/nothing"), 404, "not_found", `there is no "/v1/nothing"`, ""},
		{"root", get("/"), 404, "not_found", `there is no "/"`, ""},
		{"slash", get("/v1/check/"), 404, "not_found", `there is no "/v1/check/"`, ""},
		{"escaped", get("/v1%2fcheck"), 404, "not_found", `there is no "/v1%2fcheck"`, ""},
		{"doubled slashes", get("//v1//check"), 404, "not_found", `there is no "//v1//check"`, ""},
		{"dots", get("/x/../v1/check"), 404, "not_found", `there is no "/x/../v1/check"`, ""},
		{"escaped dots", get("/x/%2e%2e/v1/check"), 404, "not_found", `there is no "/x/%2e%2e/v1/check"`, ""},
		{"POST to nothing", post("/v1/nothing", "{}"), 404, "not_found", `there is no "/v1/nothing"`, ""},
		{"PUT", raw("PUT", "/v1/check", "{}"), 405, "method_not_allowed", "want GET, HEAD, POST", "GET, HEAD, POST"},
		{"OPTIONS", raw("OPTIONS", "/v1/check", ""), 405, "method_not_allowed", "want GET, HEAD, POST", "GET, HEAD, POST"},
		{"no such method", raw("BREW", "/v1/check", ""), 405, "method_not_allowed", "want GET, HEAD, POST", "GET, HEAD, POST"},
		{"small letters", raw("get", "/v1/check", ""), 405, "method_not_allowed", "want GET, HEAD, POST", "GET, HEAD, POST"},
		{"GET of a batch", get("/v1/checks"), 405, "method_not_allowed", "want POST", "POST"},
		{"POST to health", post("/healthz", ""), 405, "method_not_allowed", "want GET, HEAD", "GET, HEAD"},
		{"DELETE of readiness", raw("DELETE", "/readyz", ""), 405, "method_not_allowed", "want GET, HEAD", "GET, HEAD"},
		{"body", post("/v1/check", long+"x"), 413, "body_too_large", "the body has 65537 bytes: want at most 65536", ""},
		{"body that is no JSON either", post("/v1/check", long+"x", "Content-Type: text/plain"), 413, "body_too_large",
			"the body has 65537 bytes: want at most 65536", ""},
		{"form", post("/v1/check", "key=k", "Content-Type: application/x-www-form-urlencoded"), 415, "unsupported_media_type",
			`Content-Type is "application/x-www-form-urlencoded": want application/json, or no Content-Type`, ""},
		{"text", post("/v1/checks", `{"checks":[]}`, "Content-Type: text/plain; charset=utf-8"), 415, "unsupported_media_type",
			`Content-Type is "text/plain; charset=utf-8": want application/json, or no Content-Type`, ""},
		{"almost JSON", post("/v1/check", "{}", "Content-Type: application/jsonp"), 415, "unsupported_media_type",
			`Content-Type is "application/jsonp": want application/json, or no Content-Type`, ""},
		{"form with a file", post("/v1/check", "--b\r\n\r\n--b--", "Content-Type: multipart/form-data; boundary=b"), 415, "unsupported_media_type",
			`Content-Type is "multipart/form-data; boundary=b": want application/json, or no Content-Type`, ""},
	} {
		_, addr := start(t, Config{})
		conn := dial(t, addr)
		conn.send(c.raw)
		res := conn.receive("POST")
		res.wantError(t, c.name, c.status, c.code, c.message)
		if got := res.Header.Get("Allow"); got != c.allow {
			t.Errorf("%s: Allow %q, want %q", c.name, got, c.allow)
		}
		// The client can go on with the same connection.
		conn.send(get("/healthz"))
		if res := conn.receive("GET"); res.StatusCode != 200 {
			t.Errorf("%s: then %d", c.name, res.StatusCode)
		}
	}
}

func TestTrustClientID(t *testing.T) {
	_, addr := start(t, Config{Identity: identity.New(identity.Config{TrustClientID: true})})
	conn := dial(t, addr)
	conn.send(post("/v1/check", `{"key":"k","rate":"1/s","cost":-1}`))
	if res := conn.receive("POST"); res.StatusCode != 200 {
		t.Errorf("%d %s", res.StatusCode, res.body)
	}
}

// What the library refuses is answered in the same form, and then the connection ends.
func TestUnreadable(t *testing.T) {
	const tooLarge = "the body is too large: want at most 65536 bytes, 1048576 for /v1/checks"
	length := "Content-Length: " + strconv.Itoa(maxChecksBody+1)
	chunk := strconv.FormatInt(maxChecksBody+1, 16) + "\r\n"
	for _, c := range []struct {
		name, raw     string
		status        int
		code, message string
	}{
		{"no HTTP", "hello\r\n\r\n", 400, "invalid_argument", "this is not a request in HTTP/1.1"},
		{"TLS", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400, "invalid_argument", "this is not a request in HTTP/1.1"},
		{"no version", "GET /healthz\r\n\r\n", 400, "invalid_argument", "this is not a request in HTTP/1.1"},
		{"HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, "invalid_argument", "this is not a request in HTTP/1.1"},
		{"space in a name", get("/healthz", "Key : v"), 400, "invalid_argument", "this is not a request in HTTP/1.1"},
		{"no colon", get("/healthz", "Key"), 400, "invalid_argument", "this is not a request in HTTP/1.1"},
		{"negative length", "POST /v1/check HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", 400, "invalid_argument", "this is not a request in HTTP/1.1"},
		{"two lengths", "POST /v1/check HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}", 400, "invalid_argument",
			"this is not a request in HTTP/1.1"},
		{"broken chunks", "POST /v1/check HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", 400, "invalid_argument",
			"this is not a request in HTTP/1.1"},
		{"X-Forwarded-For as a trailer", "POST /v1/check HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 203.0.113.9\r\nTransfer-Encoding: chunked\r\n\r\n" +
			"0\r\nx-forwarded-for: 127.0.0.1\r\n\r\n", 400, "invalid_argument", "this is not a request in HTTP/1.1"},
		{"X-Forwarded-For as a trailer, announced", "POST /v1/check HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTrailer: X-Forwarded-For\r\n\r\n" +
			"0\r\nX-Forwarded-For: 127.0.0.1\r\n\r\n", 400, "invalid_argument", "this is not a request in HTTP/1.1"},
		{"headers", get("/healthz", "Cookie: "+strings.Repeat("x", maxHeader)), 431, "invalid_argument", "the headers are too large: want at most 16384 bytes"},
		{"many headers", get("/healthz", strings.Repeat("A: b\r\n", maxHeader/6)+"C: d"), 431, "invalid_argument",
			"the headers are too large: want at most 16384 bytes"},
		{"path", get("/" + strings.Repeat("x", maxHeader)), 431, "invalid_argument", "the headers are too large: want at most 16384 bytes"},
		{"body, announced", "POST /v1/checks HTTP/1.1\r\nHost: a\r\n" + length + "\r\n\r\n", 413, "body_too_large", tooLarge},
		{"body, sent", post("/v1/checks", strings.Repeat(" ", maxChecksBody+1)), 413, "body_too_large", tooLarge},
		{"far too large a body", post("/v1/checks", strings.Repeat(" ", 8*maxChecksBody)), 413, "body_too_large", tooLarge},
		{"body for nobody", post("/v1/nothing", strings.Repeat(" ", maxChecksBody+1)), 413, "body_too_large", tooLarge},
		{"body in chunks", "POST /v1/checks HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk + strings.Repeat(" ", maxChecksBody+1) + "\r\n0\r\n\r\n",
			413, "body_too_large", tooLarge},
		{"form with a large file", post("/v1/checks", strings.Repeat(" ", 2*maxChecksBody), "Content-Type: multipart/form-data; boundary=b"),
			413, "body_too_large", tooLarge},
	} {
		_, addr := start(t, Config{})
		conn := dial(t, addr)
		conn.send(c.raw)
		res := conn.receive("POST")
		res.wantError(t, c.name, c.status, c.code, c.message)
		if !res.Close || res.Header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s: headers %v", c.name, res.Header)
		}
		conn.ended()
	}
}

func TestExpectContinue(t *testing.T) {
	_, addr := start(t, Config{})
	conn := dial(t, addr)
	conn.send("POST /v1/check HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
	if res := conn.receive("POST"); res.StatusCode != 100 {
		t.Fatalf("got %d, want 100", res.StatusCode)
	}
	conn.send("{}")
	if res := conn.receive("POST"); res.StatusCode != 200 {
		t.Errorf("got %d %s", res.StatusCode, res.body)
	}
}

// Keys at the limit pass both ways even when every byte is escaped.
func TestLongestKeyFitsTheHeaders(t *testing.T) {
	_, addr := start(t, Config{})
	conn := dial(t, addr)
	conn.send(get("/v1/check?key="+strings.Repeat("%00", bucket.MaxKeyBytes), "Cookie: "+strings.Repeat("x", 12<<10)))
	if res := conn.receive("GET"); res.StatusCode != 200 {
		t.Errorf("%d %s", res.StatusCode, res.body)
	}
}
