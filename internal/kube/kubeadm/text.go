package kubeadm

import (
	"bytes"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
)

// document is a YAML text of one document, with where each value stands in it.
type document struct {
	file string
	text []byte
	root *yaml.Node
}

// read refuses comments as well: kubeadm writes none, and who writes one writes the file again.
func read(file string, text []byte) (*document, error) {
	d := &document{file: file, text: text}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	var top yaml.Node
	if err := decoder.Decode(&top); err != nil || len(top.Content) != 1 || top.Content[0].Kind != yaml.MappingNode {
		return nil, unusual(file, "is not a YAML object")
	}
	if decoder.Decode(new(yaml.Node)) == nil {
		return nil, unusual(file, "has more than one document")
	}
	if comment := commentIn(&top); comment != "" {
		return nil, unusual(file, "has the comment %q, and kubeadm writes none: something else manages it", comment)
	}
	d.root = top.Content[0]
	return d, nil
}

func commentIn(n *yaml.Node) string {
	for _, c := range []string{n.HeadComment, n.LineComment, n.FootComment} {
		if c != "" {
			first, _, _ := strings.Cut(c, "\n")
			return first
		}
	}
	for _, below := range n.Content {
		if c := commentIn(below); c != "" {
			return c
		}
	}
	return ""
}

// field is a value by its keys from the top; nil, if it is not there.
func (d *document) field(keys ...string) *yaml.Node { return fieldOf(d.root, keys...) }

func fieldOf(n *yaml.Node, keys ...string) *yaml.Node {
	for _, key := range keys {
		if n == nil || n.Kind != yaml.MappingNode {
			return nil
		}
		var found *yaml.Node
		for i := 0; i+1 < len(n.Content); i += 2 {
			if n.Content[i].Value == key {
				found = n.Content[i+1]
			}
		}
		n = found
	}
	return n
}

func (d *document) scalar(keys ...string) string {
	if n := d.field(keys...); n != nil && n.Kind == yaml.ScalarNode {
		return n.Value
	}
	return ""
}

// replace writes a scalar anew where it stands, in the style that it has.
func (d *document) replace(n *yaml.Node, value string) ([]byte, error) {
	lines := bytes.SplitAfter(d.text, []byte("\n"))
	if n.Kind != yaml.ScalarNode || n.Line < 1 || n.Line > len(lines) {
		return nil, unusual(d.file, "has no plain value in line %d", n.Line)
	}
	was, is := written(n, n.Value), written(n, value)
	line := lines[n.Line-1]
	at := n.Column - 1
	if at > len(line) || !bytes.HasPrefix(line[at:], []byte(was)) {
		return nil, unusual(d.file, "does not have %q in one piece in line %d", n.Value, n.Line)
	}
	edited := append(bytes.Clone(line[:at]), is...)
	lines[n.Line-1] = append(edited, line[at+len(was):]...)
	return bytes.Join(lines, nil), nil
}

func written(n *yaml.Node, value string) string {
	switch n.Style {
	case yaml.DoubleQuotedStyle:
		return fmt.Sprintf("%q", value)
	case yaml.SingleQuotedStyle:
		return "'" + value + "'"
	}
	return value
}

// encoded is the whole document as kubeadm writes it: two columns, and lists below their key.
func (d *document) encoded() ([]byte, error) {
	var out bytes.Buffer
	e := yaml.NewEncoder(&out)
	e.SetIndent(2)
	e.CompactSeqIndent()
	if err := e.Encode(d.root); err != nil {
		return nil, fmt.Errorf("%s: %w", d.file, err)
	}
	return out.Bytes(), e.Close()
}
