package httpapi

import (
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/tokenring/tokenring/bucket"
	"github.com/tokenring/tokenring/node"
	"github.com/tokenring/tokenring/transport/request"
)

// maxInteger is the largest integer that a structured field of HTTP can hold.
const maxInteger = 999_999_999_999_999

var (
	headerAllow        = []byte("Allow")
	headerLimit        = []byte("X-RateLimit-Limit")
	headerRemaining    = []byte("X-RateLimit-Remaining")
	headerReset        = []byte("X-RateLimit-Reset")
	headerPolicy       = []byte("RateLimit-Policy")
	headerRateLimit    = []byte("RateLimit")
	headerRetryAfter   = []byte("Retry-After")
	headerDegraded     = []byte("X-RateLimit-Degraded")
	headerCacheControl = []byte("Cache-Control")
)

// limitHeaders adds the headers of an answer.
func (r *reply) limitHeaders(a *node.Answer, f request.Figures) {
	retry := request.InUnits(f.RetryAfter, time.Second)
	if !a.Unlimited && !a.Degraded {
		r.numberHeader(headerLimit, f.Burst)
		r.numberHeader(headerRemaining, f.Remaining)
		reset := request.InUnits(f.ResetAfter, time.Second)
		if f.ResetAfter != bucket.Never {
			r.numberHeader(headerReset, reset)
		}
		r.values = appendItem(r.values, a.Limit, ";q=", f.Burst)
		if a.FillTime > 0 {
			r.values = appendParam(r.values, ";w=", request.InUnits(a.FillTime, time.Second))
		}
		r.header(headerPolicy)
		r.values = appendItem(r.values, a.Limit, ";r=", f.Remaining)
		if !a.Allowed {
			reset = retry
		}
		if reset >= 0 {
			r.values = appendParam(r.values, ";t=", reset)
		}
		r.header(headerRateLimit)
	}
	if !a.Allowed && f.RetryAfter != bucket.Never {
		r.numberHeader(headerRetryAfter, max(retry, 1))
	}
	if a.Degraded {
		r.values = append(r.values, "true"...)
		r.header(headerDegraded)
	}
}

// appendItem begins an item of a structured field. Names of limits need no escapes.
func appendItem(b []byte, name, param string, n int64) []byte {
	b = append(b, '"')
	b = append(b, name...)
	b = append(b, '"')
	return appendParam(b, param, n)
}

func appendParam(b []byte, param string, n int64) []byte {
	return strconv.AppendInt(append(b, param...), min(n, maxInteger), 10)
}

// appendAnswer appends an answer as JSON.
func appendAnswer(b []byte, a *node.Answer, f request.Figures) []byte {
	b = append(b, `{"allowed":`...)
	b = strconv.AppendBool(b, a.Allowed)
	b = append(b, `,"limit":`...)
	b = appendString(b, a.Limit)
	b = append(b, `,"key":`...)
	b = appendString(b, a.Key)
	b = append(b, `,"burst":`...)
	b = strconv.AppendInt(b, f.Burst, 10)
	b = append(b, `,"remaining":`...)
	b = strconv.AppendInt(b, f.Remaining, 10)
	b = append(b, `,"retry_after_ms":`...)
	b = strconv.AppendInt(b, request.InUnits(f.RetryAfter, time.Millisecond), 10)
	b = append(b, `,"reset_after_ms":`...)
	b = strconv.AppendInt(b, request.InUnits(f.ResetAfter, time.Millisecond), 10)
	b = append(b, `,"degraded":`...)
	b = strconv.AppendBool(b, a.Degraded)
	b = append(b, `,"node":`...)
	b = appendString(b, a.Node)
	return append(b, '}')
}

// appendError appends an error as JSON.
func appendError(b []byte, e *request.Error) []byte {
	b = append(b, `{"error":{"code":`...)
	b = appendString(b, string(e.Code))
	b = append(b, `,"message":`...)
	b = appendString(b, e.Message)
	return append(b, "}}"...)
}

// appendString appends s as JSON, bytes that are no UTF-8 as replacement characters.
func appendString(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= ' ' && c != '"' && c != '\\' && c < utf8.RuneSelf {
			i++
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		if r != utf8.RuneError && c >= utf8.RuneSelf {
			i += size
			continue
		}
		b = append(b, s[start:i]...)
		switch {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c == '\n':
			b = append(b, `\n`...)
		case c < ' ':
			b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		default:
			b = utf8.AppendRune(b, utf8.RuneError)
		}
		i += size
		start = i
	}
	b = append(b, s[start:]...)
	return append(b, '"')
}
