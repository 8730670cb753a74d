package httpapi

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/tokenring/tokenring/transport/request"
)

func decodeCheck(body []byte, f *fields) (wrong, err error) {
	d, err := newDecoder(body)
	if err != nil {
		return nil, err
	}
	if wrong, err = d.check(f); err != nil {
		return nil, err
	}
	return wrong, d.end()
}

// What the decoder takes, encoding/json takes too and reads as the same; what the
// decoder calls malformed, encoding/json does not take, or it reads something else into
// it than what is there.
func FuzzDecodeCheck(f *testing.F) {
	for _, seed := range []string{
		``, `{}`, `{"limit":"api","key":"user:123","cost":1}`, `{"rate":"10/s","burst":20}`, ` {"cost" : -0 } `,
		`{"key":"\"\\\/\b\f\n\r\t\u00e4\ud83d\ude00"}`, `{"key":"\ud83d"}`, `{"key":"\ud83d\u0041"}`, `{"key":"\ufffd"}`,
		`{"key":"a","key":"b"}`, `{"Key":"a"}`, `{"cost":1.5e+3}`, `{"cost":null}`, `{"key":[[{"a":tru}]]}`, "{\"key\":\"\xff\"}", `{}{}`, `{"cost":01}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var got fields
		wrong, err := decodeCheck(body, &got)
		switch {
		case err != nil:
			if e := request.AsError(err); strings.HasPrefix(e.Message, "malformed") && json.Valid(body) && !odd(body) {
				t.Errorf("%q: %v, but it is JSON", body, err)
			}
		case !json.Valid(body):
			t.Errorf("%q is taken, but it is no JSON", body)
		case wrong == nil:
			var want request.Request
			d := json.NewDecoder(bytes.NewReader(body))
			d.DisallowUnknownFields()
			if err := d.Decode(&want); err != nil || !sameRequest(&got.Request, &want) {
				t.Errorf("%q: read as %s, by encoding/json as %s, %v", body, shown(&got.Request), shown(&want), err)
			}
		}
	})
}

// odd reports whether body is JSON that the decoder refuses all the same: half a
// surrogate pair, or values nested very deeply.
func odd(body []byte) bool {
	return bytes.Contains(bytes.ToLower(body), []byte(`\ud`)) || bytes.Count(body, []byte("["))+bytes.Count(body, []byte("{")) >= maxDepth
}

func sameRequest(a, b *request.Request) bool {
	return a.Limit == b.Limit && same(a.Key, b.Key) && same(a.Cost, b.Cost) && same(a.Rate, b.Rate) && same(a.Burst, b.Burst)
}

func same[T comparable](a, b *T) bool { return a == b || a != nil && b != nil && *a == *b }

func shown(r *request.Request) string {
	s, err := json.Marshal(r)
	if err != nil {
		return err.Error()
	}
	return string(s)
}

// A batch is read as its entries would be read alone.
func FuzzDecodeBatch(f *testing.F) {
	for _, seed := range []string{
		``, `{"checks":[]}`, `{"checks":[{},{"key":"a","cost":-1},{"key":5},7,null]}`, `{"checks":[{"x":1}]}`, `{"checks":[{}]`, `{"checks":[{"key":"\ud83d"}]}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var got []string
		d, err := newDecoder(body)
		if err != nil {
			return
		}
		var one fields
		err = d.checks(&one, func(wrong error) {
			if wrong != nil {
				got = append(got, wrong.Error())
			} else {
				got = append(got, shown(&one.Request))
			}
		})
		if err != nil {
			return
		}
		var batch struct{ Checks []json.RawMessage }
		if err := json.Unmarshal(body, &batch); err != nil {
			t.Fatalf("%q is taken, but %v", body, err)
		}
		var want []string
		for _, entry := range batch.Checks {
			var f fields
			wrong, err := decodeCheck(entry, &f)
			switch {
			case err != nil:
				t.Fatalf("%q is taken, but %q alone is not: %v", body, entry, err)
			case wrong != nil:
				want = append(want, wrong.Error())
			default:
				want = append(want, shown(&f.Request))
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q: read as %q, want %q", body, got, want)
		}
	})
}

// What is appended as a string, encoding/json reads as the same string.
func FuzzAppendString(f *testing.F) {
	for _, seed := range []string{"", "plain", "\"\\/\x00\x1f\x7f", "äöü😀\u2028", "a\xffb\xed\xa0\x80"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		var got string
		want := string([]rune(s)) // with a replacement for each byte that is no UTF-8
		if err := json.Unmarshal(appendString(nil, s), &got); err != nil || got != want {
			t.Errorf("%q comes back as %q, %v", s, got, err)
		}
	})
}

func BenchmarkDecodeCheck(b *testing.B) {
	body := []byte(`{"limit":"api","key":"user:123","cost":1}`)
	var f fields
	b.ReportAllocs()
	for b.Loop() {
		if wrong, err := decodeCheck(body, &f); wrong != nil || err != nil {
			b.Fatal(wrong, err)
		}
	}
}
