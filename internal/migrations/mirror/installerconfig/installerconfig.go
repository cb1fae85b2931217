// Package installerconfig makes the kubeadm or kOps configuration of a mirror from that of its
// source. Versions, feature gates and flags are taken over; certificates, keys, tokens, etcd and
// cloud resources are not. Comments mark what needs attention.
package installerconfig

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Overrides is what of the mirror differs from the source.
type Overrides struct {
	Name string
	// Endpoint of its API, as host or host:port; empty, if it is to be filled in.
	Endpoint string
	// Services, Pods and Nodes are its ranges: empty ones are those of the source.
	Services, Pods, Nodes []netip.Prefix
}

// Error says what cannot be made a mirror's configuration of.
type Error struct{ Problem, Hint string }

func (e *Error) Error() string { return e.Problem }

func (e *Error) Advice() string { return e.Hint }

func bad(hint, format string, args ...any) error {
	return &Error{Problem: fmt.Sprintf(format, args...), Hint: hint}
}

// dnsName is what both installers take for a cluster's name, which becomes part of names in DNS.
var dnsName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`)

// Validate refuses what no mirror can have, whatever the source is.
func (w Overrides) Validate() error {
	const longest = 253
	if !dnsName.MatchString(w.Name) || len(w.Name) > longest || strings.Contains(w.Name, "..") {
		return bad("use lower-case letters, digits, dashes and dots, such as mirror.example.com", "%q is no name of a cluster", w.Name)
	}
	if strings.ContainsAny(w.Endpoint, "/ \t\n\"") {
		return bad("write host:port, such as api.mirror.example.com:6443", "%q is no endpoint of an API server", w.Endpoint)
	}
	all := map[string][]netip.Prefix{"Services": w.Services, "pods": w.Pods, "nodes": w.Nodes}
	for _, pair := range [][2]string{{"Services", "pods"}, {"Services", "nodes"}, {"pods", "nodes"}} {
		for _, a := range all[pair[0]] {
			for _, b := range all[pair[1]] {
				if a.Overlaps(b) {
					return bad("choose others; replumb ranges proposes some",
						"the range of %s %s and that of %s %s overlap", pair[0], a, pair[1], b)
				}
			}
		}
	}
	return nil
}

func documents(body []byte) (all []*yaml.Node, err error) {
	if bytes.Contains(body, []byte(noted)) {
		return nil, bad("print it once more, and do not change it", "it has the word %s, which replumb needs for itself", noted)
	}
	d := yaml.NewDecoder(bytes.NewReader(body))
	for {
		n := &yaml.Node{}
		err := d.Decode(n)
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, bad("print it once more, and do not change it", "it is no YAML: %v", err)
		}
		if len(n.Content) == 1 && n.Content[0].Kind == yaml.MappingNode {
			all = append(all, n.Content[0])
		} else if len(n.Content) == 1 && n.Content[0].Tag != "!!null" {
			return nil, bad("print it once more, and do not change it", "line %d is no object of Kubernetes", n.Content[0].Line)
		}
	}
}

func write(top string, all []*yaml.Node) ([]byte, error) {
	var out bytes.Buffer
	for line := range strings.SplitSeq(strings.TrimSuffix(top, "\n"), "\n") {
		out.WriteString(strings.TrimRight("# "+line, " ") + "\n")
	}
	for i, n := range all {
		if i > 0 {
			out.WriteString("---\n")
		}
		e := yaml.NewEncoder(&out)
		e.SetIndent(2) //nolint:mnd // as kubectl has it
		if err := e.Encode(n); err != nil {
			return nil, fmt.Errorf("writing the configuration: %w", err)
		}
		if err := e.Close(); err != nil {
			return nil, fmt.Errorf("writing the configuration: %w", err)
		}
	}
	return comments(out.Bytes()), nil
}

// Comments begin with these: fill in, check, or left out.
const (
	fillIn  = "FILL IN: "
	check   = "CHECK: "
	leftOut = "Left out: "
)

func get(m *yaml.Node, path ...string) *yaml.Node {
	for _, key := range path {
		if m == nil || m.Kind != yaml.MappingNode {
			return nil
		}
		i := index(m, key)
		if i < 0 {
			return nil
		}
		m = m.Content[i+1]
	}
	return m
}

func text(m *yaml.Node, path ...string) string {
	n := get(m, path...)
	if n == nil || n.Kind != yaml.ScalarNode {
		return ""
	}
	return n.Value
}

func index(m *yaml.Node, key string) int {
	for i := 0; i < len(m.Content); i += 2 {
		if m.Content[i].Value == key {
			return i
		}
	}
	return -1
}

func set(m *yaml.Node, key string, value *yaml.Node) {
	if i := index(m, key); i >= 0 {
		m.Content[i+1] = value
		return
	}
	m.Content = append(m.Content, scalar(key), value)
}

func scalar(value string) *yaml.Node {
	n := &yaml.Node{}
	n.SetString(value)
	return n
}

func mapping() *yaml.Node { return &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"} }

func remark(m *yaml.Node, key, format string, args ...any) {
	i := index(m, key)
	if i < 0 {
		return
	}
	at := m.Content[i]
	if m.Content[i+1].Kind == yaml.ScalarNode {
		at = m.Content[i+1]
	}
	said := line(fmt.Sprintf(format, args...))
	if at.LineComment != "" {
		said = strings.TrimPrefix(at.LineComment, "# ") + "; " + said
	}
	at.LineComment = "# " + said
}

// noted stands for a comment until the file is written: the library drops some.
const noted = "__note__"

func drop(m *yaml.Node, key, format string, args ...any) {
	i := index(m, key)
	if i < 0 {
		return
	}
	m.Content[i], m.Content[i+1] = scalar(noted), scalar(coded(about(key, fmt.Sprintf(format, args...))))
}

func dropItem(l *yaml.Node, i int, name, why string) {
	l.Content[i] = scalar(noted + coded(about(name, why)))
}

func about(name, why string) string {
	if rest, ok := strings.CutPrefix(why, fillIn); ok {
		return fillIn + name + ": " + rest
	}
	return leftOut + name + ": " + why
}

// coded is a comment as one word, which no YAML quotes or breaks.
func coded(said string) string { return "x" + hex.EncodeToString([]byte(line(said))) }

// line is a text in one line: what a source has in its fields may have several.
func line(said string) string { return strings.Join(strings.Fields(said), " ") }

func isNote(m *yaml.Node, i int) bool { return strings.HasPrefix(m.Content[i].Value, noted) }

var noteLine = regexp.MustCompile(`(?m)^( *)((?:- )*)` + noted + `(: )?x([0-9a-f]*)$`)

// comments makes the comments of what stands for them.
func comments(body []byte) []byte {
	return noteLine.ReplaceAllFunc(body, func(found []byte) []byte {
		part := noteLine.FindSubmatch(found)
		said, err := hex.DecodeString(string(part[4]))
		if err != nil {
			return found
		}
		dashes := string(part[2])
		if len(part[3]) == 0 { // it was the part of a list itself
			dashes = strings.TrimSuffix(dashes, "- ")
		}
		return []byte(string(part[1]) + dashes + "# " + string(said))
	})
}

func retain(m *yaml.Node, keys ...string) {
	var unknown []string
	for i := 0; i < len(m.Content); i += 2 {
		if key := m.Content[i].Value; !isNote(m, i) && !slices.Contains(keys, key) {
			unknown = append(unknown, key)
		}
	}
	for _, key := range unknown {
		drop(m, key, "it is not known to fit another cluster")
	}
}

// plain removes comments: they are about the source, and may hold anything.
func plain(n *yaml.Node) {
	n.HeadComment, n.LineComment, n.FootComment, n.Style = "", "", "", n.Style&^yaml.TaggedStyle
	if len(n.Content) > 0 {
		n.Style &^= yaml.FlowStyle
	}
	for _, c := range n.Content {
		plain(c)
	}
}

func aliased(n *yaml.Node) bool {
	return n.Kind == yaml.AliasNode || n.Anchor != "" || slices.ContainsFunc(n.Content, aliased)
}

// secretive reports whether a field or flag of this name may hold or lead to a secret.
func secretive(name string) bool {
	name = strings.ToLower(strings.NewReplacer("-", "", "_", "").Replace(name))
	return slices.ContainsFunc(
		[]string{
			"secret", "token", "password", "passwd", "credential", "privatekey", "apikey",
			"accesskey", "keyfile", "kubeconfig", "basicauth",
		},
		func(part string) bool { return strings.Contains(name, part) },
	)
}

func joined(all []netip.Prefix) string {
	var out []string
	for _, p := range all {
		out = append(out, p.String())
	}
	return strings.Join(out, ",")
}
