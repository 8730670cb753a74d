package httpapi

import (
	"bytes"
	"cmp"
	"net/netip"
	"strconv"

	"github.com/tokenring/tokenring/node"
	"github.com/tokenring/tokenring/transport/request"
)

// What a body may have, in bytes.
const (
	maxCheckBody  = 64 << 10
	maxChecksBody = 1 << 20
)

// An exchange is one request and the reply to it, without the library that carries them.
// What is read belongs to the library and is gone when the exchange ends.
type exchange struct {
	method, path, query, contentType, body []byte

	peer         netip.Addr
	forwardedFor []string

	reply

	fields  fields
	checks  []node.Check
	answers []node.Answer
	wrong   []error // of each entry in a batch, nil for those in checks
}

// A reply is what goes back: the values of its headers stand in values, one after another.
type reply struct {
	status  int
	out     []byte
	headers []header
	values  []byte
}

type header struct {
	name []byte
	end  int // of its value
}

// reset makes x ready to be used again, and lets go of all that it knew.
func (x *exchange) reset() {
	clear(x.checks)
	clear(x.answers)
	clear(x.wrong)
	*x = exchange{
		reply:   reply{out: x.out[:0], headers: x.headers[:0], values: x.values[:0]},
		checks:  x.checks[:0],
		answers: x.answers[:0],
		wrong:   x.wrong[:0],
	}
}

// header ends the value that was appended to values.
func (r *reply) header(name []byte) {
	r.headers = append(r.headers, header{name, len(r.values)})
}

func (r *reply) numberHeader(name []byte, n int64) {
	r.values = strconv.AppendInt(r.values, n, 10)
	r.header(name)
}

func (r *reply) fail(e *request.Error) {
	r.status = statusOf(e.Code)
	r.out = append(appendError(r.out[:0], e), '\n')
}

func statusOf(c request.Code) int {
	switch c {
	case request.PermissionDenied:
		return 403
	case request.UnknownLimit, request.NotFound:
		return 404
	case request.MethodNotAllowed:
		return 405
	case request.BodyTooLarge:
		return 413
	case request.UnsupportedMediaType:
		return 415
	}
	return 400
}

// A route is what a path does, by method.
type route struct {
	get, post func(*Server, *exchange) error
	allow     string
}

var routes = map[string]route{
	"/v1/check":  {(*Server).getCheck, (*Server).postCheck, "GET, HEAD, POST"},
	"/v1/checks": {nil, (*Server).postChecks, "POST"},
	"/healthz":   {(*Server).health, nil, "GET, HEAD"},
	"/readyz":    {(*Server).ready, nil, "GET, HEAD"},
}

// handle answers a request.
func (s *Server) handle(x *exchange) {
	x.status = 200
	if err := s.route(x); err != nil {
		x.fail(request.AsError(err))
	}
}

func (s *Server) route(x *exchange) error {
	r, ok := routes[string(x.path)]
	if !ok {
		return &request.Error{Code: request.NotFound, Message: "there is no " + request.Quote(string(x.path))}
	}
	switch m := string(x.method); {
	case r.get != nil && (m == "GET" || m == "HEAD"):
		return r.get(s, x)
	case r.post != nil && m == "POST":
		return r.post(s, x)
	}
	x.values = append(x.values, r.allow...)
	x.header(headerAllow)
	return &request.Error{Code: request.MethodNotAllowed, Message: "want " + r.allow}
}

func (s *Server) getCheck(x *exchange) error {
	if len(x.body) > 0 {
		return request.Invalid("a check that is sent with %s stands in the query: want no body", x.method)
	}
	if err := x.fields.query(x.query); err != nil {
		return err
	}
	return s.check(x)
}

func (s *Server) postCheck(x *exchange) error {
	if err := x.acceptBody(maxCheckBody); err != nil {
		return err
	}
	if len(x.body) > 0 {
		d, err := newDecoder(x.body)
		if err != nil {
			return err
		}
		if wrong, err := d.check(&x.fields); err != nil || wrong != nil {
			return cmp.Or(err, wrong)
		}
		if err := d.end(); err != nil {
			return err
		}
	}
	return s.check(x)
}

// acceptBody looks at a body from outside.
func (x *exchange) acceptBody(most int) error {
	if len(x.body) > most {
		return &request.Error{Code: request.BodyTooLarge, Message: "the body has " + strconv.Itoa(len(x.body)) +
			" bytes: want at most " + strconv.Itoa(most)}
	}
	mediaType, _, _ := bytes.Cut(x.contentType, []byte(";"))
	if len(x.contentType) > 0 && !bytes.EqualFold(bytes.TrimSpace(mediaType), []byte("application/json")) {
		return &request.Error{Code: request.UnsupportedMediaType, Message: "Content-Type is " +
			request.Quote(string(x.contentType)) + ": want application/json, or no Content-Type"}
	}
	if len(x.query) > 0 {
		return request.Invalid("a check that is sent with POST stands in the body: want no query")
	}
	return nil
}

// check decides the one check that was read.
func (s *Server) check(x *exchange) error {
	c, err := x.fields.Check(s.identity.Resolve(x.peer, x.forwardedFor))
	if err != nil {
		return err
	}
	x.checks = append(x.checks, c)
	x.answers = append(x.answers, node.Answer{})
	s.limiter.Check(s.ctx, x.checks, x.answers)
	a := &x.answers[0]
	if a.Err != nil {
		return a.Err
	}
	f := request.NewFigures(a)
	x.limitHeaders(a, f)
	x.out = append(appendAnswer(x.out, a, f), '\n')
	if !a.Allowed {
		x.status = 429
	}
	return nil
}

func (s *Server) postChecks(x *exchange) error {
	if err := x.acceptBody(maxChecksBody); err != nil {
		return err
	}
	d, err := newDecoder(x.body)
	if err != nil {
		return err
	}
	client := s.identity.Resolve(x.peer, x.forwardedFor)
	err = d.checks(&x.fields, func(wrong error) {
		var c node.Check
		if wrong == nil {
			c, wrong = x.fields.Check(client)
		}
		if wrong == nil {
			x.checks = append(x.checks, c)
			x.answers = append(x.answers, node.Answer{})
		}
		x.wrong = append(x.wrong, wrong)
	})
	if err != nil {
		return err
	}
	if len(x.checks) > 0 {
		s.limiter.Check(s.ctx, x.checks, x.answers)
	}
	x.results()
	return nil
}

// results puts the answers of a batch in the places of their checks.
func (x *exchange) results() {
	x.out = append(x.out, `{"results":[`...)
	next := 0
	for i, err := range x.wrong {
		if i > 0 {
			x.out = append(x.out, ',')
		}
		if err == nil {
			a := &x.answers[next]
			next++
			if err = a.Err; err == nil {
				x.out = appendAnswer(x.out, a, request.NewFigures(a))
				continue
			}
		}
		x.out = appendError(x.out, request.AsError(err))
	}
	x.out = append(x.out, "]}\n"...)
}

func (s *Server) health(x *exchange) error {
	x.out = append(x.out, `{"status":"ok"}`+"\n"...)
	return nil
}

func (s *Server) ready(x *exchange) error {
	reason := s.notReady()
	if reason == "" {
		x.out = append(x.out, `{"status":"ready"}`+"\n"...)
		return nil
	}
	x.status = 503
	x.out = append(x.out, `{"status":"not ready","reason":`...)
	x.out = append(appendString(x.out, reason), "}\n"...)
	return nil
}
