package limits

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/tokenring/tokenring/bucket"
)

func TestParseRate(t *testing.T) {
	for _, c := range []struct {
		rate   string
		tokens int64
		per    time.Duration
	}{
		{"0", 0, 0},
		{"1/s", 1, time.Second},
		{"100/m", 100, time.Minute},
		{"7/h", 7, time.Hour},
		{"3/d", 3, 24 * time.Hour},
		{"5/15m", 5, 15 * time.Minute},
		{"5/1h30m", 5, 90 * time.Minute},
		{"1/1ns", 1, 1},
		{"2/0.5s", 2, time.Second / 2},
		{"007/s", 7, time.Second},
		{"9223372036854775807/s", math.MaxInt64, time.Second},
		{"1/9223372036854775807ns", 1, math.MaxInt64},
	} {
		tokens, per, err := ParseRate(c.rate)
		if tokens != c.tokens || per != c.per || err != nil {
			t.Errorf("ParseRate(%q) = %d, %v, %v, want %d, %v", c.rate, tokens, per, err, c.tokens, c.per)
		}
	}
}

func TestParseRateErrors(t *testing.T) {
	for _, rate := range []string{
		"", "/", "1", "00", "1/", "/s", "0/s", "-1/s", "+1/s", "1.5/s", "1e3/s", "1_000/s", "0x10/s", " 1/s", "1/s ",
		"1/ s", "1/S", "1/w", "1/1d", "1/0s", "1/-1s", "1/+1s", "1/0.1ns", "1/s/s", "1//s", "1/15", "100", "٣/s", "1/\x00",
		"1/9223372036854775808ns", "1\xff/s",
	} {
		if _, _, err := ParseRate(rate); err == nil || !strings.HasSuffix(err.Error(), ratesAllowed) {
			t.Errorf("ParseRate(%q): error %v, want one that says what is allowed", rate, err)
		}
	}
	_, _, err := ParseRate("9223372036854775808/s")
	if want := `"9223372036854775808/s" is too large: at most 9223372036854775807 tokens`; err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
	_, _, err = ParseRate(strings.Repeat("x", 1<<16))
	if err == nil || len(err.Error()) > 300 {
		t.Errorf("the error repeats the whole input: %.400v", err)
	}
}

func TestInline(t *testing.T) {
	for _, c := range []struct {
		rate  string
		burst *int64
		want  bucket.Limit
	}{
		{"10/s", new(int64(20)), newLimit(t, 10, time.Second, 20)},
		{"10/s", nil, newLimit(t, 10, time.Second, 10)},
		{"10/s", new(int64(0)), newLimit(t, 10, time.Second, 0)},
		{"0", new(int64(20)), newLimit(t, 0, 0, 20)},
	} {
		if got, err := Inline(c.rate, c.burst); got != c.want || err != nil {
			t.Errorf("Inline(%q, %v) = %v, %v, want %v", c.rate, c.burst, got, err, c.want)
		}
	}
}

func TestInlineErrors(t *testing.T) {
	for _, c := range []struct {
		rate  string
		burst *int64
		want  string
	}{
		{"", nil, `rate: "" is not a rate: ` + ratesAllowed},
		{"10/x", new(int64(20)), `rate: "10/x" is not a rate: ` + ratesAllowed},
		{"0", nil, `burst: is needed with a rate of 0`},
		{"1/s", new(int64(-1)), `burst: -1 is not a burst: want a whole number of tokens, 0 or more`},
		{"1/s", new(int64(math.MaxInt64)), `burst: limit cannot be represented: burst 9223372036854775807 is too large for this rate, at most 2305843009`},
		{"9223372036854775807/s", nil, `rate: limit cannot be represented: burst 9223372036854775807 is too large for this rate, at most 2305843009`},
	} {
		got, err := Inline(c.rate, c.burst)
		if err == nil || err.Error() != c.want || got != (bucket.Limit{}) {
			t.Errorf("Inline(%q, %v) = %v, %v, want %s", c.rate, c.burst, got, err, c.want)
		}
	}
	if _, err := Inline("1/s", new(int64(math.MaxInt64))); !errors.Is(err, bucket.ErrLimit) {
		t.Errorf("error %v does not wrap ErrLimit", err)
	}
}

func newLimit(t *testing.T, tokens int64, per time.Duration, burst int64) bucket.Limit {
	t.Helper()
	l, err := bucket.NewLimit(tokens, per, burst)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func FuzzParseRate(f *testing.F) {
	for _, seed := range []string{"0", "100/m", "5/15m", "1/1ns", "1/", "-1/s", "9223372036854775807/d"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, rate string) {
		tokens, per, err := ParseRate(rate)
		switch {
		case err != nil:
			if tokens != 0 || per != 0 {
				t.Errorf("ParseRate(%q) = %d, %v with error %v", rate, tokens, per, err)
			}
		case rate == "0":
			if tokens != 0 || per != 0 {
				t.Errorf("ParseRate(%q) = %d, %v", rate, tokens, per)
			}
		case tokens <= 0 || per <= 0:
			t.Errorf("ParseRate(%q) = %d, %v", rate, tokens, per)
		}
		if l, err := Inline(rate, nil); err == nil && l.Burst() != tokens {
			t.Errorf("Inline(%q) holds %d tokens, want %d", rate, l.Burst(), tokens)
		}
	})
}
