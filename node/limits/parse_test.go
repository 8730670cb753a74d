package limits

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tokenring/tokenring/bucket"
)

// documented is the limits file of the documentation.
const documented = `limits:
  - name: default            # used when a check names no limit
    rate: 1/s
    burst: 10
  - name: api
    rate: 100/m
    burst: 20
    on_failure: allow
    identify: header:x-api-key
    overrides:
      - key: "user:123"
        rate: 1000/m
        burst: 100
  - name: partners
    unlimited: true
  - name: banned
    burst: 0
`

func TestParseDocumentedFile(t *testing.T) {
	s, err := Parse([]byte(documented), Local)
	if err != nil {
		t.Fatal(err)
	}
	api := Rule{Name: "api", Limit: newLimit(t, 100, time.Minute, 20), Identify: "X-Api-Key"}
	vip := api
	vip.Limit = newLimit(t, 1000, time.Minute, 100)
	for _, c := range []struct {
		key  string
		want Rule
	}{
		{"k", Rule{Name: "default", Limit: newLimit(t, 1, time.Second, 10), OnFailure: Local}},
		{"user:124", api},
		{"user:123", vip},
		{"k", Rule{Name: "partners", Unlimited: true, OnFailure: Local}},
		{"k", Rule{Name: "banned", Limit: newLimit(t, 0, 0, 0), OnFailure: Local}},
	} {
		if r := s.Resolve(c.want.Name, c.key); r == nil || *r != c.want {
			t.Errorf("%s of %s is %+v, want %+v", c.want.Name, c.key, r, c.want)
		}
	}
	if names := slices.Collect(s.Names()); !slices.Equal(names, []string{"api", "banned", "default", "partners"}) {
		t.Errorf("names %q", names)
	}
}

func TestParseLimits(t *testing.T) {
	never := newLimit(t, 0, 0, 20)
	for _, c := range []struct {
		name, file string
		key        string // of the bucket
		want       Rule   // of the limit a
	}{
		{"rate 0", `limits: [{name: a, rate: 0, burst: 20}]`, "k", Rule{Limit: never}},
		{"rate 0 in quotes", `limits: [{name: a, rate: "0", burst: 20}]`, "k", Rule{Limit: never}},
		{"burst left out", `limits: [{name: a, rate: 7/h}]`, "k", Rule{Limit: newLimit(t, 7, time.Hour, 7)}},
		{"burst 0 with a rate", `limits: [{name: a, rate: 7/h, burst: 0}]`, "k", Rule{Limit: newLimit(t, 7, time.Hour, 0)}},
		{"JSON", `{"limits":[{"name":"a","rate":"5/15m","burst":9,"unlimited":false}]}`, "k", Rule{Limit: newLimit(t, 5, 15*time.Minute, 9)}},
		{"policy", `limits: [{name: a, rate: 0, burst: 20, on_failure: redis}]`, "k", Rule{Limit: never, OnFailure: Redis}},
		{"identify ip", `limits: [{name: a, rate: 0, burst: 20, identify: ip}]`, "k", Rule{Limit: never}},
		{"reserved in another case", `limits: [{name: a, rate: 0, burst: 20}, {name: Inline, unlimited: true}]`, "k", Rule{Limit: never}},
		{"document mark", "---\nlimits: [{name: a, rate: 0, burst: 20}]\n...\n", "k", Rule{Limit: never}},
		{"byte order mark", "\ufefflimits: [{name: a, rate: 0, burst: 20}]", "k", Rule{Limit: never}},
		{"Windows lines", "limits:\r\n  - name: a\r\n    rate: 0\r\n    burst: 20\r\n", "k", Rule{Limit: never}},

		{"override of the rate alone", `limits: [{name: a, rate: 1/s, burst: 5, overrides: [{key: k, rate: 9/h}]}]`, "k",
			Rule{Limit: newLimit(t, 9, time.Hour, 9)}},
		{"override of the burst alone", `limits: [{name: a, rate: 1/s, burst: 5, overrides: [{key: k, burst: 9}]}]`, "k",
			Rule{Limit: newLimit(t, 1, time.Second, 9)}},
		{"override bans", `limits: [{name: a, unlimited: true, overrides: [{key: k, burst: 0}]}]`, "k", Rule{Limit: newLimit(t, 0, 0, 0)}},
		{"override of unlimited", `limits: [{name: a, unlimited: true, overrides: [{key: k, rate: 1/s}]}]`, "k",
			Rule{Limit: newLimit(t, 1, time.Second, 1)}},
		{"override is unlimited", `limits: [{name: a, rate: 1/s, overrides: [{key: k, unlimited: true}]}]`, "k", Rule{Unlimited: true}},
		{"override inherits the rest", `limits: [{name: a, rate: 1/s, on_failure: deny, identify: "header:A", overrides: [{key: k, burst: 2}]}]`, "k",
			Rule{Limit: newLimit(t, 1, time.Second, 2), OnFailure: Deny, Identify: "A"}},
		{"override of another key", `limits: [{name: a, rate: 1/s, overrides: [{key: k, burst: 2}]}]`, "K",
			Rule{Limit: newLimit(t, 1, time.Second, 1)}},
		{"override of an address", `limits: [{name: a, rate: 1/s, overrides: [{key: "2001:db8::/64", burst: 2}]}]`, "2001:db8::/64",
			Rule{Limit: newLimit(t, 1, time.Second, 2)}},

		{"alias", `limits: [{name: b, rate: &r 1/s, burst: &b 3}, {name: a, rate: *r, burst: *b}]`, "k",
			Rule{Limit: newLimit(t, 1, time.Second, 3)}},
		{"merge", "limits:\n- &b {name: b, rate: 1/s, burst: 3}\n- {<<: *b, name: a, burst: 4}", "k",
			Rule{Limit: newLimit(t, 1, time.Second, 4)}},
		{"merge of several", "limits:\n- &b {name: b, rate: 1/s, burst: 3}\n- &c {name: c, burst: 0}\n- {name: a, <<: [*c, *b]}", "k",
			Rule{Limit: newLimit(t, 1, time.Second, 0)}},
		{"merge into itself", "limits:\n- &a {<<: *a, name: a, rate: 1/s, burst: 3}", "k",
			Rule{Limit: newLimit(t, 1, time.Second, 3)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.want.Name = "a"
			if r := parse(t, c.file).Resolve("a", c.key); r == nil || *r != c.want {
				t.Errorf("rule %+v, want %+v", r, c.want)
			}
		})
	}
}

func TestParseGivesTheDefaultAway(t *testing.T) {
	for file, want := range map[string]Rule{
		`limits: []`: {Limit: newLimit(t, 1, time.Second, 10)},
		`limits: [{name: default, unlimited: true}]`: {Unlimited: true},
	} {
		want.Name = "default"
		if r := parse(t, file).Resolve("default", "k"); r == nil || *r != want {
			t.Errorf("%s: default is %+v, want %+v", file, r, want)
		}
	}
}

func TestParseErrors(t *testing.T) {
	limit := "want name, rate, burst, unlimited, on_failure, identify, overrides"
	override := "want key, rate, burst, unlimited"
	for _, c := range []struct {
		name, file string
		want       []string
	}{
		{"empty", "", []string{`1: the file is empty: want limits and a list`}},
		{"comments only", "# nothing\n", []string{`1: the file is empty: want limits and a list`}},
		{"null", "---\n", []string{`2: null is not a mapping: want limits`}},
		{"text", "limits", []string{`1: "limits" is not a mapping: want limits`}},
		{"list", "- name: a", []string{`1: is not a mapping: want limits`}},
		{"no list", "{}", []string{`1: limits: is missing: want a list, [] for none`}},
		{"null list", "limits:", []string{`1: limits: null is not a list`}},
		{"mapping for a list", "limits:\n  api: {rate: 1/s}", []string{`2: limits: is not a list`}},
		{"two documents", "limits: []\n---\nlimits: []", []string{`2: a second document: want one alone`}},
		{"syntax", "limits:\n  - name: a\n   rate: 1/s", []string{`2: from this line on: did not find expected '-' indicator`}},
		{"tab", "limits:\n\t- name: a", []string{`2: found character that cannot start any token`}},
		{"unknown anchor", "limits: *a", []string{`1: unknown anchor 'a' referenced`}},
		{"bad bytes", "limits: \xff", []string{`1: invalid leading UTF-8 octet`}},
		{"syntax of a second document", "limits: []\n---\n]", []string{`3: from this line on: did not find expected node content`}},

		{"unknown top field", "limit: []\nlimits: []", []string{`1: "limit" is not a field: want limits`}},
		{"unknown field", "limits:\n- name: a\n  rate: 1/s\n  brust: 2", []string{`4: limits[0]: "brust" is not a field: ` + limit}},
		{"unknown field of an override", "limits:\n- name: a\n  rate: 1/s\n  overrides:\n  - key: k\n    on_failure: deny\n    burst: 1",
			[]string{`6: limits[0].overrides[0]: "on_failure" is not a field: ` + override}},
		{"field in another case", "limits: [{Name: a, name: a, burst: 0}]", []string{`1: limits[0]: "Name" is not a field: ` + limit}},
		{"mapping as a field", "limits: [{name: a, burst: 0, {x: y}: z}]", []string{`1: limits[0]: is not a field: ` + limit}},
		{"field given twice", "limits:\n- name: a\n  burst: 0\n  burst: 1", []string{`4: limits[0]: "burst" is given twice`}},
		{"bad merge", "limits: [{name: a, burst: 0, <<: x}]", []string{`1: limits[0]: << is not a mapping: want one, or a list of them`}},
		{"entry is text", "limits:\n- api", []string{`2: limits[0]: "api" is not a mapping: ` + limit}},

		{"no name", "limits:\n- rate: 1/s", []string{`2: limits[0].name: is missing: ` + nameAllowed}},
		{"null name", "limits: [{name: , rate: 1/s}]", []string{`1: limits[0].name: null is not a string`}},
		{"number as a name", "limits: [{name: 404, rate: 1/s}]", []string{`1: limits[0].name: "404" is not a string: put it in quotes`}},
		{"list as a name", "limits: [{name: [a], rate: 1/s}]", []string{`1: limits[0].name: is not a string`}},
		{"bad name", "limits: [{name: a b, rate: 1/s}]", []string{`1: limits[0].name: "a b" is not a name: ` + nameAllowed}},
		{"empty name", "limits: [{name: '', rate: 1/s}]", []string{`1: limits[0].name: "" is not a name: ` + nameAllowed}},
		{"reserved names", "limits:\n- {name: inline, rate: 1/s}\n- {name: unknown, rate: 1/s}",
			[]string{`2: limits[0].name: "inline" is reserved: want another name`, `3: limits[1].name: "unknown" is reserved: want another name`}},
		{"name given twice", "limits:\n- {name: a, rate: 1/s}\n- {name: a, rate: 1/s}",
			[]string{`3: limits[1].name: "a" is given twice, first on line 2`}},

		{"no rate", "limits:\n- name: a", []string{`2: limits[0].rate: is missing: ` + ratesAllowed}},
		{"burst without a rate", "limits:\n- name: a\n  burst: 5", []string{`2: limits[0].rate: is missing: ` + ratesAllowed}},
		{"rate 0 without a burst", "limits:\n- name: a\n  rate: 0", []string{`2: limits[0].burst: is needed with a rate of 0`}},
		{"number as a rate", "limits:\n- name: a\n  rate: 100", []string{`3: limits[0].rate: "100" is not a rate: ` + ratesAllowed}},
		{"null rate", "limits:\n- name: a\n  rate:", []string{`3: limits[0].rate: "" is not a rate: ` + ratesAllowed}},
		{"list as a rate", "limits:\n- name: a\n  rate: [1/s]", []string{`3: limits[0].rate: is not a rate: ` + ratesAllowed}},
		{"negative burst", "limits: [{name: a, rate: 1/s, burst: -1}]", []string{`1: limits[0].burst: "-1" is not a burst: ` + burstAllowed}},
		{"burst with a fraction", "limits: [{name: a, rate: 1/s, burst: 1.5}]", []string{`1: limits[0].burst: "1.5" is not a burst: ` + burstAllowed}},
		{"text as a burst", "limits: [{name: a, rate: 1/s, burst: '5'}]", []string{`1: limits[0].burst: "5" is not a burst: ` + burstAllowed}},
		{"null burst", "limits: [{name: a, rate: 1/s, burst: }]", []string{`1: limits[0].burst: null is not a burst: ` + burstAllowed}},
		{"burst beyond integers", "limits: [{name: a, rate: 1/s, burst: 9223372036854775808}]",
			[]string{`1: limits[0].burst: "9223372036854775808" is not a burst: ` + burstAllowed}},
		{"burst too large", "limits:\n- name: a\n  rate: 1/d\n  burst: 26689",
			[]string{`4: limits[0].burst: limit cannot be represented: burst 26689 is too large for this rate, at most 26687`}},
		{"rate too large", "limits:\n- name: a\n  rate: 9223372036854775807/s",
			[]string{`3: limits[0].rate: limit cannot be represented: burst 9223372036854775807 is too large for this rate, at most 2305843009`}},
		{"unlimited with a rate", "limits: [{name: a, rate: 1/s, unlimited: true}]",
			[]string{`1: limits[0].unlimited: goes with neither rate nor burst`}},
		{"unlimited with a burst", "limits: [{name: a, burst: 0, unlimited: true}]",
			[]string{`1: limits[0].unlimited: goes with neither rate nor burst`}},
		{"text as a boolean", "limits: [{name: a, unlimited: maybe}]",
			[]string{`1: limits[0].unlimited: "maybe" is not a boolean: want true or false`}},
		{"null boolean", "limits: [{name: a, unlimited: , rate: 1/s}]",
			[]string{`1: limits[0].unlimited: null is not a boolean: want true or false`}},

		{"bad policy", "limits: [{name: a, burst: 0, on_failure: open}]",
			[]string{`1: limits[0].on_failure: "open" is not a failure policy: want allow, deny, local or redis`}},
		{"boolean as a policy", "limits: [{name: a, burst: 0, on_failure: true}]",
			[]string{`1: limits[0].on_failure: "true" is not a string: put it in quotes`}},

		{"overrides are no list", "limits: [{name: a, burst: 0, overrides: {key: k}}]", []string{`1: limits[0].overrides: is not a list`}},
		{"override is text", "limits: [{name: a, burst: 0, overrides: [k]}]",
			[]string{`1: limits[0].overrides[0]: "k" is not a mapping: ` + override}},
		{"override without a key", "limits: [{name: a, burst: 0, overrides: [{burst: 0}]}]",
			[]string{`1: limits[0].overrides[0].key: is missing: want the key that the override is for`}},
		{"override with a key alone", "limits: [{name: a, rate: 1/s, overrides: [{key: k}]}]",
			[]string{`1: limits[0].overrides[0]: changes nothing: want rate, burst or unlimited`}},
		{"number as a key", "limits: [{name: a, burst: 0, overrides: [{key: 123, burst: 0}]}]",
			[]string{`1: limits[0].overrides[0].key: "123" is not a string: put it in quotes`}},
		{"empty key", "limits: [{name: a, burst: 0, overrides: [{key: '', burst: 0}]}]",
			[]string{`1: limits[0].overrides[0].key: "" is not a key: want 1 to 1024 bytes of UTF-8`}},
		{"key given twice", "limits: [{name: a, burst: 0, overrides: [{key: k, burst: 0}, {key: k, burst: 0}]}]",
			[]string{`1: limits[0].overrides[1].key: "k" is given twice in this limit`}},
		{"override needs a rate", "limits: [{name: a, burst: 0, overrides: [{key: k, burst: 1}]}]",
			[]string{`1: limits[0].overrides[0].rate: is missing: ` + ratesAllowed}},
		{"override with a bad rate", "limits: [{name: a, burst: 0, overrides: [{key: k, rate: 1}]}]",
			[]string{`1: limits[0].overrides[0].rate: "1" is not a rate: ` + ratesAllowed}},
		{"text as the burst of an override", "limits: [{name: a, burst: 0, overrides: [{key: k, burst: x}]}]",
			[]string{`1: limits[0].overrides[0].burst: "x" is not a burst: ` + burstAllowed}},
		{"override with a bad burst", "limits: [{name: a, rate: 1/d, overrides: [{key: k, burst: 26689}]}]",
			[]string{`1: limits[0].overrides[0].burst: limit cannot be represented: burst 26689 is too large for this rate, at most 26687`}},

		{"several, in the order of their lines", "limits:\n- name: a\n  burst: x\n  on_failure: y\n- name: inline\n  rate: 1\n  overrides: [{}]",
			[]string{
				`3: limits[0].burst: "x" is not a burst: ` + burstAllowed,
				`4: limits[0].on_failure: "y" is not a failure policy: want allow, deny, local or redis`,
				`5: limits[1].name: "inline" is reserved: want another name`,
				`6: limits[1].rate: "1" is not a rate: ` + ratesAllowed,
			}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, err := Parse([]byte(c.file), Allow)
			fe, ok := errors.AsType[*FileError](err)
			if !ok || s != nil {
				t.Fatalf("set %v, error %v", s, err)
			}
			fe.File = "f"
			want := "f:" + strings.Join(c.want, "\nf:")
			if err.Error() != want {
				t.Errorf("error\n%v\nwant\n%s", err, want)
			}
		})
	}
}

func TestParseBoundsOfKeys(t *testing.T) {
	longest := strings.Repeat("é", bucket.MaxKeyBytes/2)
	file := `limits: [{name: a, rate: 1/s, overrides: [{key: "` + longest + `", burst: 2}]}]`
	if got := parse(t, file).Resolve("a", longest).Limit.Burst(); got != 2 {
		t.Errorf("the longest key's burst is %d", got)
	}
	if _, err := Parse([]byte(strings.Replace(file, "éé", "ééé", 1)), Allow); err == nil || len(err.Error()) > 300 {
		t.Errorf("a longer key: error %v", err)
	}
}

func TestParseIdentify(t *testing.T) {
	for _, s := range []string{"", "IP", "header", "header:", "header: X", "header:X Y", "header:X:", "header:Ä", "header:a\x7f", "header:a/b", "cookie:x"} {
		if h, err := parseIdentify(s); h != "" || err == nil || !strings.HasSuffix(err.Error(), identifyAllowed) {
			t.Errorf("parseIdentify(%q) = %q, %v", s, h, err)
		}
	}
	for s, want := range map[string]string{"ip": "", "header:x-api-key": "X-Api-Key", "header:~t!#$%&'*+-.^_`|9": "~t!#$%&'*+-.^_`|9"} {
		if h, err := parseIdentify(s); !strings.EqualFold(h, want) || err != nil {
			t.Errorf("parseIdentify(%q) = %q, %v", s, h, err)
		}
	}
}

func TestFileErrorEnds(t *testing.T) {
	e := FileError{Faults: slices.Repeat([]Fault{{Line: 2, Message: "is wrong"}}, 30)}
	lines := strings.Split(e.Error(), "\n")
	if len(lines) != 21 || lines[0] != "limits file:2: is wrong" || lines[20] != "limits file: and 10 more" {
		t.Errorf("%d lines, %q to %q", len(lines), lines[0], lines[len(lines)-1])
	}
}

// Merging mappings into each other twice at every step would take for ever if each were
// read as often as it is named.
func TestParseMergesOnce(t *testing.T) {
	var file strings.Builder
	file.WriteString("limits:\n- &a0 {name: n0, burst: 0}\n")
	for i := range 40 {
		last, name := string(rune('A'+i)), string(rune('A'+i+1))
		if i == 0 {
			last = "a0"
		}
		file.WriteString("- &" + name + " {name: n" + name + ", <<: [*" + last + ", *" + last + "]}\n")
	}
	if _, err := Parse([]byte(file.String()), Allow); err == nil {
		return
	} else if fe, ok := errors.AsType[*FileError](err); !ok || len(fe.Faults) > 100 {
		t.Errorf("error %v", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(documented))
	for _, seed := range []string{
		"", "---\n...\n", "limits: []", "limits: [{name: a, rate: 0, burst: 20}]", "limits:\n- &b {name: b, rate: 1/s}\n- {<<: [*b, *b], name: a}",
		"limits: &a [*a]", "&a {limits: *a}", "limits: [{name: a, burst: !!int x}]", "? [x]\n: y", "limits: [{<<: {<<: {}}}]",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := Parse(data, Deny)
		if err != nil {
			fe, ok := errors.AsType[*FileError](err)
			if !ok || s != nil || len(fe.Faults) == 0 {
				t.Fatalf("set %v, error %v", s, err)
			}
			for _, fault := range fe.Faults {
				if fault.Line < 1 || fault.Message == "" || strings.ContainsAny(fault.Message+fault.Field, "\n\r") {
					t.Errorf("fault %+v", fault)
				}
			}
			return
		}
		for key, r := range s.Rules() {
			if !ValidName(r.Name) || r.Version != 0 || r.Limit.Burst() < 0 || r.Unlimited && r.Limit != (bucket.Limit{}) {
				t.Errorf("rule %+v", r)
			}
			if key != "" && s.Resolve(r.Name, key) != r {
				t.Errorf("%q resolves to another rule", key)
			}
		}
		if s.Resolve("default", "k") == nil || s.Resolve("inline", "k") != nil || s.Resolve("unknown", "k") != nil {
			t.Error("default is missing, or a reserved name defined")
		}
	})
}
