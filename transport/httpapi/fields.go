package httpapi

import (
	"bytes"
	"net/url"
	"strconv"

	"github.com/tokenring/tokenring/transport/request"
)

const fieldsAllowed = "want limit, key, cost, rate or burst"

// Fields are a check as a client sends it. The request points to the other members, so
// that reading one after another needs no new memory.
type fields struct {
	request.Request
	key, rate   string
	cost, burst int64
	seen        uint8 // a bit for each field
}

// once notes that a field was given and reports whether that is the first time.
func (f *fields) once(bit int) bool {
	first := f.seen&(1<<bit) == 0
	f.seen |= 1 << bit
	return first
}

// field says which bit and which place stand for a name; one of the places is nil.
func (f *fields) field(name []byte) (bit int, text *string, number *int64) {
	switch string(name) {
	case "limit":
		return 0, &f.Limit, nil
	case "key":
		f.Key = &f.key
		return 1, f.Key, nil
	case "cost":
		f.Cost = &f.cost
		return 2, nil, f.Cost
	case "rate":
		f.Rate = &f.rate
		return 3, f.Rate, nil
	case "burst":
		f.Burst = &f.burst
		return 4, nil, f.Burst
	}
	return -1, nil, nil
}

// check reads one check into f. A mistake that leaves the others in a batch untouched is
// wrong alone; err means that nothing behind it can be believed.
func (d *decoder) check(f *fields) (wrong, err error) {
	*f = fields{}
	if d.peek() != '{' {
		kind, err := d.skip(maxDepth)
		return request.Invalid("want an object, not %s", kind), err
	}
	err = d.object(func(name []byte) error {
		bit, text, number := f.field(name)
		var mistake, err error
		switch {
		case bit < 0:
			return request.Invalid("unknown field %s: %s", request.Quote(string(name)), fieldsAllowed)
		case !f.once(bit):
			mistake = request.Invalid("field %s is given twice", name)
			_, err = d.skip(maxDepth)
		case text != nil:
			mistake, err = d.textField(name, text)
		default:
			mistake, err = d.numberField(name, number)
		}
		if wrong == nil {
			wrong = mistake
		}
		return err
	})
	return wrong, err
}

func (d *decoder) textField(name []byte, to *string) (wrong, err error) {
	if d.peek() != '"' {
		kind, err := d.skip(maxDepth)
		return request.Invalid("%s: want a string, not %s", name, kind), err
	}
	text, err := d.text()
	*to = string(text)
	return nil, err
}

func (d *decoder) numberField(name []byte, to *int64) (wrong, err error) {
	if c := d.peek(); c != '-' && (c < '0' || c > '9') {
		kind, err := d.skip(maxDepth)
		return request.Invalid("%s: want a whole number, not %s", name, kind), err
	}
	number, err := d.number()
	if err != nil {
		return nil, err
	}
	return parseNumber(name, string(number), to), nil
}

func parseNumber(name []byte, s string, to *int64) error {
	n, err := strconv.ParseInt(s, 10, 64)
	// The one way to write a number that JSON has too, also in a query.
	if err != nil || strconv.FormatInt(n, 10) != s {
		return request.Invalid("%s: %s is not a whole number from -2^63 to 2^63-1", name, request.Quote(s))
	}
	*to = n
	return nil
}

// checks reads a batch and calls add after each check, which stands in f if it is not
// wrong.
func (d *decoder) checks(f *fields, add func(wrong error)) error {
	seen, count := false, 0
	err := d.object(func(name []byte) error {
		if string(name) != "checks" {
			return request.Invalid("unknown field %s: want checks", request.Quote(string(name)))
		}
		if seen {
			return request.Invalid("field checks is given twice")
		}
		seen = true
		return d.sequence('[', ']', func() error {
			if count++; count > request.MaxChecks {
				return request.Invalid("too many checks: want at most %d", request.MaxChecks)
			}
			wrong, err := d.check(f)
			if err == nil {
				add(wrong)
			}
			return err
		})
	})
	if err != nil {
		return err
	}
	if !seen {
		return request.Invalid("field checks is missing: want a list of checks")
	}
	return d.end()
}

// query reads a check from the query of a URI into f.
func (f *fields) query(raw []byte) error {
	*f = fields{}
	for param := range bytes.SplitSeq(raw, []byte("&")) {
		if len(param) == 0 {
			continue
		}
		rawName, rawValue, _ := bytes.Cut(param, []byte("="))
		name, err := url.QueryUnescape(string(rawName))
		if err != nil {
			return request.Invalid("the query has %s, which is no percent-encoding", request.Quote(string(rawName)))
		}
		bit, text, number := f.field([]byte(name))
		if bit < 0 {
			return request.Invalid("unknown parameter %s: %s", request.Quote(name), fieldsAllowed)
		}
		if !f.once(bit) {
			return request.Invalid("parameter %s is given twice", name)
		}
		value, err := url.QueryUnescape(string(rawValue))
		switch {
		case err != nil:
			return request.Invalid("%s: %s is no percent-encoding", name, request.Quote(string(rawValue)))
		case text != nil:
			*text = value
		default:
			if err := parseNumber([]byte(name), value, number); err != nil {
				return err
			}
		}
	}
	return nil
}
