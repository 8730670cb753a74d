package limits

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// A Fault is one thing that is wrong with a limits file.
type Fault struct {
	Line    int    // from 1 on
	Field   string // such as limits[1].rate, "" for the file as a whole
	Message string
}

// A FileError names everything that is wrong with a limits file, one line for each.
type FileError struct {
	File   string // its name; Parse does not know it
	Faults []Fault
}

func (e *FileError) Error() string {
	const most = 20 // lines
	file := cmp.Or(e.File, "limits file")
	var lines []string
	for i, f := range e.Faults {
		if i == most {
			lines = append(lines, fmt.Sprintf("%s: and %d more", file, len(e.Faults)-most))
			break
		}
		field := f.Field
		if field != "" {
			field += ": "
		}
		lines = append(lines, fmt.Sprintf("%s:%d: %s%s", file, f.Line, field, f.Message))
	}
	return strings.Join(lines, "\n")
}

// syntaxFault takes the line out of an error of the YAML library. Those of its grammar
// come with the line before the one on which the block begins that is not as expected.
func syntaxFault(err error) Fault {
	f := Fault{Line: 1, Message: strings.TrimPrefix(err.Error(), "yaml: ")}
	if n, _ := fmt.Sscanf(f.Message, "line %d:", &f.Line); n == 1 {
		_, f.Message, _ = strings.Cut(f.Message, ": ")
		if strings.HasPrefix(f.Message, "did not find expected") {
			f.Line++
			f.Message = "from this line on: " + f.Message
		}
	}
	return f
}

// A walker reads YAML nodes rather than decoding them into structs, since only nodes
// know their lines.
type walker struct{ faults []Fault }

func (w *walker) fault(n *yaml.Node, field, format string, args ...any) {
	w.faults = append(w.faults, Fault{Line: n.Line, Field: field, Message: fmt.Sprintf(format, args...)})
}

// check notes err, if there is one, as what is wrong with n.
func (w *walker) check(err error, n *yaml.Node, field string) {
	if err != nil {
		w.fault(n, field, "%v", err)
	}
}

// fields are the values of a mapping, aliases followed.
type fields map[string]*yaml.Node

// fields returns nil when n is not a mapping. Unknown fields and those given twice are
// left out.
func (w *walker) fields(n *yaml.Node, path string, known []string) fields {
	n = follow(n)
	if n.Kind != yaml.MappingNode {
		w.fault(n, path, "%sis not a mapping: want %s", shown(n), strings.Join(known, ", "))
		return nil
	}
	f := fields{}
	w.collect(n, path, known, f, map[*yaml.Node]bool{})
	return f
}

// collect adds to f what the mapping n has and f has not. Mappings that are merged into n
// come last, since its own fields win. Each is read once: again it could add nothing, and
// it may be merged into itself.
func (w *walker) collect(n *yaml.Node, path string, known []string, f fields, done map[*yaml.Node]bool) {
	if done[n] {
		return
	}
	done[n] = true
	own := map[string]bool{}
	var merged []*yaml.Node
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := follow(n.Content[i]), follow(n.Content[i+1])
		switch {
		case key.ShortTag() == "!!merge" && value.Kind == yaml.SequenceNode:
			merged = append(merged, value.Content...)
		case key.ShortTag() == "!!merge":
			merged = append(merged, value)
		case key.Kind != yaml.ScalarNode || !slices.Contains(known, key.Value):
			w.fault(n.Content[i], path, "%sis not a field: want %s", shown(key), strings.Join(known, ", "))
		case own[key.Value]:
			w.fault(n.Content[i], path, "%q is given twice", key.Value)
		default:
			own[key.Value] = true
			if f[key.Value] == nil {
				f[key.Value] = value
			}
		}
	}
	for _, m := range merged {
		if m = follow(m); m.Kind != yaml.MappingNode {
			w.fault(m, path, "<< is not a mapping: want one, or a list of them")
			continue
		}
		w.collect(m, path, known, f, done)
	}
}

// list returns the elements of a sequence, none if n is nil.
func (w *walker) list(n *yaml.Node, field string) []*yaml.Node {
	if n == nil {
		return nil
	}
	if n.Kind != yaml.SequenceNode {
		w.fault(n, field, "%sis not a list", shown(n))
		return nil
	}
	return n.Content
}

// text returns a string and reports whether n is one. A nil n is none, without fault.
func (w *walker) text(n *yaml.Node, field string) (string, bool) {
	switch {
	case n == nil:
		return "", false
	case n.Kind == yaml.ScalarNode && n.ShortTag() == "!!str":
		return n.Value, true
	case n.Kind == yaml.ScalarNode && n.ShortTag() != "!!null":
		w.fault(n, field, "%sis not a string: put it in quotes", shown(n))
	default:
		w.fault(n, field, "%sis not a string", shown(n))
	}
	return "", false
}

func follow(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

// shown is how a message begins that is about the value of n: nothing when it is no
// single value.
func shown(n *yaml.Node) string {
	switch {
	case n.Kind != yaml.ScalarNode:
		return ""
	case n.ShortTag() == "!!null":
		return "null "
	}
	return quote(n.Value) + " "
}
