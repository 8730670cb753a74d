package limits

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/textproto"
	"slices"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/tokenring/tokenring/bucket"
)

const (
	nameAllowed     = "want [A-Za-z0-9][A-Za-z0-9._-]{0,63}"
	identifyAllowed = "want ip or header:Name"
)

var (
	fileFields     = []string{"limits"}
	limitFields    = []string{"name", "rate", "burst", "unlimited", "on_failure", "identify", "overrides"}
	overrideFields = []string{"key", "rate", "burst", "unlimited"}
)

// Parse reads a limits file. A limit that names no failure policy gets onFailure, and
// default is added unless the file gives it. All rules have version 0, the lowest. Its
// error is a *FileError, which names everything that is wrong.
//
// In an override the rate defaults to the limit's; the burst to the number of tokens in
// the override's own rate if it has one, else to the limit's. An override may be
// unlimited, and one of an unlimited limit may have a rate.
func Parse(data []byte, onFailure Policy) (*Set, error) {
	return ParseFor(data, onFailure, func(*Rule) error { return nil })
}

// ParseFor is Parse for a node that cannot keep every rule: keep says why not.
func ParseFor(data []byte, onFailure Policy, keep func(*Rule) error) (*Set, error) {
	p := parser{onFailure: onFailure, keep: keep, entries: map[string]*entry{}, lines: map[string]int{}}
	if root := p.document(data); root != nil {
		p.file(root)
	}
	if len(p.faults) > 0 {
		slices.SortStableFunc(p.faults, func(a, b Fault) int { return cmp.Compare(a.Line, b.Line) })
		return nil, &FileError{Faults: p.faults}
	}
	return newSet(p.entries, onFailure), nil
}

type parser struct {
	walker
	onFailure Policy
	keep      func(*Rule) error
	entries   map[string]*entry
	lines     map[string]int // of the limits' names
}

// document returns what the only document of the file holds, or nil.
func (p *parser) document(data []byte) *yaml.Node {
	var doc, second yaml.Node
	d := yaml.NewDecoder(bytes.NewReader(data))
	if err := d.Decode(&doc); errors.Is(err, io.EOF) {
		p.faults = append(p.faults, Fault{Line: 1, Message: "the file is empty: want limits and a list"})
		return nil
	} else if err != nil {
		p.faults = append(p.faults, syntaxFault(err))
		return nil
	}
	if err := d.Decode(&second); err == nil {
		p.fault(&second, "", "a second document: want one alone")
	} else if !errors.Is(err, io.EOF) {
		p.faults = append(p.faults, syntaxFault(err))
	}
	return doc.Content[0]
}

func (p *parser) file(root *yaml.Node) {
	f := p.fields(root, "", fileFields)
	list := f["limits"]
	if f != nil && list == nil {
		p.fault(root, "limits", "is missing: want a list, [] for none")
	}
	for i, n := range p.list(list, "limits") {
		p.limit(n, fmt.Sprintf("limits[%d]", i))
	}
}

func (p *parser) limit(n *yaml.Node, path string) {
	f := p.fields(n, path, limitFields)
	if f == nil {
		return
	}
	rule := Rule{OnFailure: p.onFailure}
	rule.Name = p.name(n, f["name"], path+".name")
	if s, ok := p.text(f["on_failure"], path+".on_failure"); ok {
		policy, err := ParsePolicy(s)
		p.check(err, f["on_failure"], path+".on_failure")
		rule.OnFailure = policy
	}
	if s, ok := p.text(f["identify"], path+".identify"); ok {
		header, err := parseIdentify(s)
		p.check(err, f["identify"], path+".identify")
		rule.Identify = header
	}
	a, ok := p.amount(f, path)
	ok = ok && p.build(n, f, path, a, &rule)
	e := &entry{rule: rule}
	for i, o := range p.list(f["overrides"], path+".overrides") {
		// Against a limit that is wrong itself nothing of an override can be judged.
		if ok {
			p.override(o, fmt.Sprintf("%s.overrides[%d]", path, i), a, e)
		}
	}
	p.entries[rule.Name] = e
}

// name returns the name of the limit at n, "" if it is wrong.
func (p *parser) name(n, value *yaml.Node, path string) string {
	if value == nil {
		p.fault(n, path, "is missing: %s", nameAllowed)
		return ""
	}
	name, ok := p.text(value, path)
	switch first, again := p.lines[name]; {
	case !ok:
		return ""
	case !ValidName(name):
		p.fault(value, path, "%s is not a name: %s", quote(name), nameAllowed)
		return ""
	case slices.Contains(reserved, name):
		p.fault(value, path, "%q is reserved: want another name", name)
		return ""
	case again:
		p.fault(value, path, "%q is given twice, first on line %d", name, first)
		return ""
	}
	p.lines[name] = value.Line
	return name
}

func (p *parser) override(n *yaml.Node, path string, limit amount, e *entry) {
	f := p.fields(n, path, overrideFields)
	if f == nil {
		return
	}
	key := p.key(n, f["key"], path+".key", e)
	a, ok := p.amount(f, path)
	if !ok {
		return
	}
	if a == (amount{}) {
		p.fault(n, path, "changes nothing: want rate, burst or unlimited")
		return
	}
	if a.rate == nil && !a.unlimited {
		a.rate = limit.rate
	}
	rule := e.rule
	rule.Limit, rule.Unlimited = bucket.Limit{}, false
	p.build(n, f, path, a, &rule)
	if key == "" {
		return
	}
	if e.overrides == nil {
		e.overrides = map[string]*Rule{}
	}
	e.overrides[key] = &rule
}

// key returns the key of the override at n, "" if it is wrong.
func (p *parser) key(n, value *yaml.Node, path string, e *entry) string {
	if value == nil {
		p.fault(n, path, "is missing: want the key that the override is for")
		return ""
	}
	key, ok := p.text(value, path)
	switch {
	case !ok:
		return ""
	case key == "" || len(key) > bucket.MaxKeyBytes || !utf8.ValidString(key):
		p.fault(value, path, "%s is not a key: want 1 to %d bytes of UTF-8", quote(key), bucket.MaxKeyBytes)
		return ""
	case e.overrides[key] != nil:
		p.fault(value, path, "%s is given twice in this limit", quote(key))
		return ""
	}
	return key
}

// An amount is how much a limit or an override lets through, as it is written.
type amount struct {
	rate      *string
	burst     *int64
	unlimited bool
}

// amount reports whether its fields have the right types.
func (p *parser) amount(f fields, path string) (a amount, ok bool) {
	before := len(p.faults)
	if n := f["rate"]; n != nil {
		if n.Kind != yaml.ScalarNode {
			p.fault(n, path+".rate", "is not a rate: %s", ratesAllowed)
		}
		a.rate = &n.Value // a rate of 0 is a number in YAML
	}
	if n := f["burst"]; n != nil {
		a.burst = new(int64)
		if n.ShortTag() != "!!int" || n.Decode(a.burst) != nil || *a.burst < 0 {
			p.fault(n, path+".burst", "%sis not a burst: %s", shown(n), burstAllowed)
		}
	}
	if n := f["unlimited"]; n != nil {
		if n.ShortTag() == "!!null" || n.Decode(&a.unlimited) != nil {
			p.fault(n, path+".unlimited", "%sis not a boolean: want true or false", shown(n))
		}
	}
	return a, len(p.faults) == before
}

// build puts what a says into the rule and reports whether that is possible.
func (p *parser) build(n *yaml.Node, f fields, path string, a amount, rule *Rule) bool {
	var err error
	switch {
	case a.unlimited && (a.rate != nil || a.burst != nil):
		err = &fieldError{"unlimited", errors.New("goes with neither rate nor burst")}
	case a.unlimited:
		rule.Unlimited = true
	case a.rate != nil:
		rule.Limit, err = Inline(*a.rate, a.burst)
	case a.burst == nil || *a.burst != 0:
		err = &fieldError{"rate", errors.New("is missing: " + ratesAllowed)}
	default:
		rule.Limit, err = bucket.NewLimit(0, 0, 0)
	}
	if fe, ok := errors.AsType[*fieldError](err); ok {
		p.fault(cmp.Or(f[fe.field], n), path+"."+fe.field, "%v", fe.err)
	} else {
		p.check(err, n, path)
	}
	if err == nil {
		err = p.keep(rule)
		p.check(err, n, path)
	}
	return err == nil
}

// parseIdentify returns the canonical name of the header that tells clients apart, or ""
// for their IP.
func parseIdentify(s string) (string, error) {
	if s == "ip" {
		return "", nil
	}
	header, found := strings.CutPrefix(s, "header:")
	if !found || header == "" || strings.ContainsFunc(header, notInHeaderName) {
		return "", fmt.Errorf("%s does not identify a client: %s", quote(s), identifyAllowed)
	}
	return textproto.CanonicalMIMEHeaderKey(header), nil
}

func notInHeaderName(r rune) bool {
	return r <= ' ' || r >= 0x7f || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, r)
}
