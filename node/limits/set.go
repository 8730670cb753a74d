// Package limits holds the rules that checks are decided by: reading them from a limits
// file, and finding the one that holds for a limit's name and a key.
package limits

import (
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/tokenring/tokenring/bucket"
)

// Names with a meaning of their own.
const (
	DefaultName = "default" // of a check that names no limit
	InlineName  = "inline"  // stands for limits that checks bring along
	UnknownName = "unknown" // stands for limits that are not defined
)

// reserved names stand for limits that have none: those that checks bring along and those
// that are not defined.
var reserved = []string{InlineName, UnknownName}

// A Set is all limits of a node. It never changes, so it may be read without a lock.
type Set struct {
	entries map[string]*entry
	names   []string // sorted
}

type entry struct {
	rule      Rule
	overrides map[string]*Rule // by key
}

func newSet(entries map[string]*entry, onFailure Policy) *Set {
	if entries[DefaultName] == nil {
		// It can be represented: the test of Default says so.
		limit, _ := bucket.NewLimit(1, time.Second, 10)
		entries[DefaultName] = &entry{rule: Rule{Name: DefaultName, Limit: limit, OnFailure: onFailure}}
	}
	return &Set{entries: entries, names: slices.Sorted(maps.Keys(entries))}
}

// Default returns the set of a node without a limits file: the limit default alone, with
// a burst of 10 and a rate of 1/s.
func Default(onFailure Policy) *Set { return newSet(map[string]*entry{}, onFailure) }

// Resolve returns the rule that the limit of this name has for a key, or nil when there
// is no such limit.
func (s *Set) Resolve(name, key string) *Rule {
	e := s.entries[name]
	if e == nil {
		return nil
	}
	if r := e.overrides[key]; r != nil {
		return r
	}
	return &e.rule
}

// Names returns the names of all limits, sorted.
func (s *Set) Names() iter.Seq[string] { return slices.Values(s.names) }

// Rules returns every rule with the key that it is for, "" standing for all keys that
// have none of their own.
func (s *Set) Rules() iter.Seq2[string, *Rule] {
	return func(yield func(string, *Rule) bool) {
		for _, name := range s.names {
			e := s.entries[name]
			if !yield("", &e.rule) {
				return
			}
			for _, key := range slices.Sorted(maps.Keys(e.overrides)) {
				if !yield(key, e.overrides[key]) {
					return
				}
			}
		}
	}
}

// ValidName reports whether s can name a limit, a node or a cluster:
// [A-Za-z0-9][A-Za-z0-9._-]{0,63}.
func ValidName(s string) bool {
	if s == "" || len(s) > 64 {
		return false
	}
	for i := range len(s) {
		c := s[i]
		letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
		if !letter && (i == 0 || c != '.' && c != '_' && c != '-') {
			return false
		}
	}
	return true
}
