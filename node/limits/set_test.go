package limits

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestDefault(t *testing.T) {
	s := Default(Deny)
	want := Rule{Name: "default", Limit: newLimit(t, 1, time.Second, 10), OnFailure: Deny}
	if r := s.Resolve("default", "k"); r == nil || *r != want {
		t.Errorf("default is %+v, want %+v", r, want)
	}
	for _, name := range []string{"", "Default", "api", "inline", "unknown"} {
		if r := s.Resolve(name, "k"); r != nil {
			t.Errorf("limit %q is %+v, want none", name, r)
		}
	}
	if names := slices.Collect(s.Names()); !slices.Equal(names, []string{"default"}) {
		t.Errorf("names %q", names)
	}
}

func TestRulesComeInOrder(t *testing.T) {
	s := parse(t, `limits:
  - {name: b, rate: 1/s, overrides: [{key: y, burst: 2}, {key: x, burst: 3}]}
  - {name: a, burst: 0}`)
	var got []string
	for key, r := range s.Rules() {
		got = append(got, fmt.Sprintf("%s/%s/%d", r.Name, key, r.Limit.Burst()))
	}
	if want := []string{"a//0", "b//1", "b/x/3", "b/y/2", "default//10"}; !slices.Equal(got, want) {
		t.Errorf("rules %q, want %q", got, want)
	}
	for stop := range len(got) {
		seen := 0
		for range s.Rules() {
			if seen++; seen > stop {
				break
			}
		}
		if seen != stop+1 {
			t.Errorf("the loop saw %d rules after it ended at %d", seen, stop+1)
		}
	}
}

func TestValidName(t *testing.T) {
	for name, want := range map[string]bool{
		"a": true, "Z9": true, "0": true, "node-1.eu_west": true, strings.Repeat("a", 64): true,
		"": false, "-a": false, ".a": false, "_a": false, "a b": false, "a/b": false, "a\n": false, "é": false,
		"a\x00": false, strings.Repeat("a", 65): false,
	} {
		if ValidName(name) != want {
			t.Errorf("ValidName(%q) = %v", name, !want)
		}
	}
}

func TestPolicyNames(t *testing.T) {
	for _, p := range []Policy{Allow, Deny, Local, Redis} {
		if got, err := ParsePolicy(p.String()); got != p || err != nil {
			t.Errorf("ParsePolicy(%q) = %v, %v", p, got, err)
		}
	}
	for _, s := range []string{"", "Allow", "allow ", "open"} {
		if _, err := ParsePolicy(s); err == nil || !strings.HasSuffix(err.Error(), "want allow, deny, local or redis") {
			t.Errorf("ParsePolicy(%q): error %v", s, err)
		}
	}
	if s := Policy(9).String(); s != "policy 9" {
		t.Errorf("an unknown policy prints as %q", s)
	}
}

// Resolving is on the way of every check: it must not allocate.
func TestResolveDoesNotAllocate(t *testing.T) {
	s := parse(t, `limits: [{name: api, rate: 1/s, overrides: [{key: vip, burst: 2}]}]`)
	if n := testing.AllocsPerRun(100, func() {
		if s.Resolve("api", "vip") == nil || s.Resolve("api", "other") == nil {
			t.Error("limit api is not defined")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkResolve measures finding the rule of a check, among limits with and without
// overrides.
func BenchmarkResolve(b *testing.B) {
	var file strings.Builder
	file.WriteString("limits:\n")
	for i := range 100 {
		fmt.Fprintf(&file, "  - {name: limit-%d, rate: 1/s}\n", i)
	}
	file.WriteString("  - name: vip\n    rate: 1/s\n    overrides:\n")
	for i := range 10_000 {
		fmt.Fprintf(&file, "      - {key: \"user:%d\", burst: 2}\n", i)
	}
	s := parse(b, file.String())
	keys := make([]string, 1024)
	for i := range keys {
		keys[i] = fmt.Sprintf("user:%d", 19*i)
	}
	for _, name := range []string{"limit-50", "vip"} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				s.Resolve(name, keys[i%len(keys)])
				i++
			}
		})
	}
}

func parse(t testing.TB, file string) *Set {
	t.Helper()
	s, err := Parse([]byte(file), Allow)
	if err != nil {
		t.Fatal(err)
	}
	return s
}
