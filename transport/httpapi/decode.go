package httpapi

import (
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/tokenring/tokenring/transport/request"
)

// maxDepth is how deep values that are passed over may be nested.
const maxDepth = 32

// A decoder reads JSON and takes nothing for granted: encoding/json lets fields pass
// that are given twice, are spelled in other letter case or hold text that is no Unicode,
// and each of these could make two keys out of one or one out of two.
type decoder struct {
	data []byte
	pos  int
}

// newDecoder returns a decoder of a whole body.
func newDecoder(data []byte) (decoder, error) {
	if !utf8.Valid(data) {
		return decoder{}, request.Invalid("the body is not valid UTF-8")
	}
	return decoder{data: data}, nil
}

func (d *decoder) malformed(want string) error {
	if d.pos >= len(d.data) {
		return request.Invalid("malformed JSON: ends after %d bytes, want %s", len(d.data), want)
	}
	return request.Invalid("malformed JSON at byte %d: want %s", d.pos, want)
}

// peek returns the first byte of what comes next, 0 at the end.
func (d *decoder) peek() byte {
	for d.pos < len(d.data) {
		switch c := d.data[d.pos]; c {
		case ' ', '\t', '\n', '\r':
			d.pos++
		default:
			return c
		}
	}
	return 0
}

// take passes over c if it comes next.
func (d *decoder) take(c byte) bool {
	if d.peek() != c {
		return false
	}
	d.pos++
	return true
}

// end makes sure that nothing comes next.
func (d *decoder) end() error {
	if d.peek(); d.pos < len(d.data) {
		return d.malformed("nothing more")
	}
	return nil
}

// object calls member after each name, which has to read the value.
func (d *decoder) object(member func(name []byte) error) error {
	return d.sequence('{', '}', func() error {
		name, err := d.text()
		if err != nil {
			return err
		}
		if !d.take(':') {
			return d.malformed("a colon")
		}
		return member(name)
	})
}

// sequence calls item before each part of an object or a list, which has to read it.
func (d *decoder) sequence(first, last byte, item func() error) error {
	if !d.take(first) {
		return d.malformed(string(first))
	}
	if d.take(last) {
		return nil
	}
	for {
		if err := item(); err != nil {
			return err
		}
		if d.take(last) {
			return nil
		}
		if !d.take(',') {
			return d.malformed("a comma or " + string(last))
		}
	}
}

// text reads a string. What it returns may be part of the body.
func (d *decoder) text() ([]byte, error) {
	if !d.take('"') {
		return nil, d.malformed("a string")
	}
	var unescaped []byte
	for start := d.pos; d.pos < len(d.data); {
		switch c := d.data[d.pos]; {
		case c == '"':
			s := d.data[start:d.pos]
			d.pos++
			if unescaped != nil {
				s = append(unescaped, s...)
			}
			return s, nil
		case c < ' ':
			return nil, d.malformed("no control character in a string")
		case c == '\\':
			unescaped = append(unescaped, d.data[start:d.pos]...)
			r, err := d.escape()
			if err != nil {
				return nil, err
			}
			unescaped = utf8.AppendRune(unescaped, r)
			start = d.pos
		default:
			d.pos++
		}
	}
	return nil, d.malformed("the end of a string")
}

// escape reads what a backslash begins. Half of a surrogate pair stands for nothing.
func (d *decoder) escape() (rune, error) {
	rest := d.data[d.pos+1:]
	if len(rest) > 0 {
		if i := strings.IndexByte(`"\/bfnrt`, rest[0]); i >= 0 {
			d.pos += 2
			return rune("\"\\/\b\f\n\r\t"[i]), nil
		}
	}
	r, ok := unit(d.data[d.pos:])
	if ok && utf16.IsSurrogate(r) {
		low, _ := unit(d.data[d.pos+6:])
		r = utf16.DecodeRune(r, low)
		ok = r != utf8.RuneError
		d.pos += 6
	}
	if !ok {
		return 0, d.malformed("an escape that stands for a character")
	}
	d.pos += 6
	return r, nil
}

// unit reads a UTF-16 code unit, written as \u and four hexadecimal digits.
func unit(b []byte) (rune, bool) {
	if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
		return 0, false
	}
	var r rune
	for _, c := range b[2:6] {
		digit := strings.IndexByte("0123456789abcdef", c|0x20)
		if c < '0' || digit < 0 {
			return 0, false
		}
		r = r<<4 | rune(digit)
	}
	return r, true
}

// number reads a number and returns it as it is written.
func (d *decoder) number() ([]byte, error) {
	d.peek()
	start := d.pos
	d.accept("-")
	if !d.accept("0") && !d.digits() {
		return nil, d.malformed("a digit")
	}
	if d.accept(".") && !d.digits() {
		return nil, d.malformed("a digit")
	}
	if d.accept("eE") {
		d.accept("+-")
		if !d.digits() {
			return nil, d.malformed("a digit")
		}
	}
	return d.data[start:d.pos], nil
}

// accept passes over the next byte if it is one of those in set.
func (d *decoder) accept(set string) bool {
	if d.pos == len(d.data) || strings.IndexByte(set, d.data[d.pos]) < 0 {
		return false
	}
	d.pos++
	return true
}

func (d *decoder) digits() bool {
	start := d.pos
	for d.accept("0123456789") {
	}
	return d.pos > start
}

// skip reads any value and says what it was.
func (d *decoder) skip(depth int) (kind string, err error) {
	switch c := d.peek(); {
	case depth == 0:
		return "", d.malformed("values that are nested less deeply")
	case c == '{':
		return "an object", d.object(func([]byte) error { _, err := d.skip(depth - 1); return err })
	case c == '[':
		return "a list", d.sequence('[', ']', func() error { _, err := d.skip(depth - 1); return err })
	case c == '"':
		_, err = d.text()
		return "a string", err
	case c == '-' || '0' <= c && c <= '9':
		_, err = d.number()
		return "a number", err
	}
	for _, word := range []string{"true", "false", "null"} {
		if rest := d.data[d.pos:]; len(rest) >= len(word) && string(rest[:len(word)]) == word {
			d.pos += len(word)
			return word, nil
		}
	}
	return "", d.malformed("a value")
}
