package loadgen

import (
	"bytes"
	"context"
	"fmt"
	"strconv"

	"github.com/valyala/fasthttp"
)

// HTTP returns what opens callers over HTTP with a connection each, to the given addresses
// in turn.
func HTTP(addrs []string, limit string) func(caller int) (Asker, error) {
	return func(caller int) (Asker, error) {
		addr := addrs[caller%len(addrs)]
		a := &httpAsker{
			client: fasthttp.HostClient{Addr: addr, MaxConns: 1, ReadTimeout: answerTimeout, WriteTimeout: answerTimeout},
			url:    "http://" + addr,
			limit:  limit,
		}
		a.request.Header.SetMethod(fasthttp.MethodPost)
		a.request.Header.SetContentType("application/json")
		return a, nil
	}
}

type httpAsker struct {
	client   fasthttp.HostClient
	request  fasthttp.Request
	response fasthttp.Response
	url      string
	path     string // of the request as it is
	limit    string
	body     []byte
}

func (a *httpAsker) Ask(_ context.Context, keys []string, t *Tally) error {
	path := "/v1/check"
	if len(keys) == 1 {
		a.body = a.check(a.body[:0], keys[0])
	} else {
		path = "/v1/checks"
		a.body = append(a.body[:0], `{"checks":[`...)
		for i, key := range keys {
			if i > 0 {
				a.body = append(a.body, ',')
			}
			a.body = a.check(a.body, key)
		}
		a.body = append(a.body, "]}"...)
	}
	if a.path != path {
		a.path = path
		a.request.SetRequestURI(a.url + path)
	}
	a.request.SetBodyRaw(a.body)
	if err := a.client.Do(&a.request, &a.response); err != nil {
		return fmt.Errorf("ask over HTTP: %w", err)
	}
	return a.count(len(keys), t)
}

func (a *httpAsker) check(into []byte, key string) []byte {
	into = append(into, '{')
	if a.limit != "" {
		into = append(strconv.AppendQuote(append(into, `"limit":`...), a.limit), ',')
	}
	return append(strconv.AppendQuote(append(into, `"key":`...), key), '}')
}

// count reads an answer no further than it must: a key cannot look like a field, since its
// quotes would be escaped.
func (a *httpAsker) count(checks int, t *Tally) error {
	status, body := a.response.StatusCode(), a.response.Body()
	switch {
	case checks == 1 && (status == fasthttp.StatusOK || status == fasthttp.StatusTooManyRequests):
		t.Count(status == fasthttp.StatusOK, len(a.response.Header.Peek("X-RateLimit-Degraded")) > 0)
		return nil
	case checks > 1 && status == fasthttp.StatusOK:
		t.Allowed += int64(bytes.Count(body, []byte(`"allowed":true`)))
		t.Denied += int64(bytes.Count(body, []byte(`"allowed":false`)))
		t.Degraded += int64(bytes.Count(body, []byte(`"degraded":true`)))
		if t.Allowed+t.Denied == int64(checks) {
			return nil
		}
	}
	return fmt.Errorf("status %d: %.200s", status, bytes.TrimSpace(body))
}
