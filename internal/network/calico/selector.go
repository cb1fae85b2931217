package calico

import (
	"fmt"
	"slices"
	"strings"
)

// Selects evaluates a selector of Calico's language on labels: all(), has(k), k == 'v', k in {'v'},
// contains, starts with, ends with, !, &&, || and brackets (libcalico-go/lib/selector). An empty
// one selects all.
func Selects(selector string, labels map[string]string) (bool, error) {
	p := &selection{words: words(selector), labels: labels}
	if len(p.words) == 0 {
		return true, nil
	}
	yes, err := p.either()
	if err == nil && len(p.words) > 0 {
		err = p.unexpected()
	}
	if err != nil {
		return false, fmt.Errorf("selector %q: %w", selector, err)
	}
	return yes, nil
}

// words splits a selector; a quoted word keeps its first quote, so that it is no name.
func words(text string) []string {
	var all []string
	for i := 0; i < len(text); {
		rest := text[i:]
		n := 1
		switch c := rest[0]; {
		case c == ' ' || c == '\t' || c == '\n':
			i++
			continue
		case c == '\'' || c == '"':
			end := strings.IndexByte(rest[1:], c)
			if end < 0 {
				return append(all, rest+"…") // no closing quote: no rule takes this
			}
			all = append(all, rest[:end+1])
			i += end + 2
			continue
		case strings.HasPrefix(rest, "==") || strings.HasPrefix(rest, "!=") || strings.HasPrefix(rest, "&&") || strings.HasPrefix(rest, "||"):
			n = 2
		case strings.IndexByte("(){},!", c) < 0:
			if n = strings.IndexAny(rest, " \t\n(){},!='\"&|"); n <= 0 {
				n = max(1, len(rest)*-n)
			}
		}
		all = append(all, rest[:n])
		i += n
	}
	return all
}

type selection struct {
	words  []string
	labels map[string]string
	depth  int
}

const deepest = 50

func (p *selection) unexpected() error {
	if len(p.words) == 0 {
		return fmt.Errorf("ends too early")
	}
	return fmt.Errorf("does not understand %s", p.words[0])
}

func (p *selection) take(word string) bool {
	if len(p.words) == 0 || p.words[0] != word {
		return false
	}
	p.words = p.words[1:]
	return true
}

func (p *selection) either() (bool, error) {
	yes, err := p.both()
	for err == nil && p.take("||") {
		var also bool
		also, err = p.both()
		yes = yes || also
	}
	return yes, err
}

func (p *selection) both() (bool, error) {
	yes, err := p.one()
	for err == nil && p.take("&&") {
		var also bool
		also, err = p.one()
		yes = yes && also
	}
	return yes, err
}

func (p *selection) one() (bool, error) {
	if p.depth++; p.depth > deepest {
		return false, fmt.Errorf("is nested too deep")
	}
	defer func() { p.depth-- }()
	switch {
	case p.take("!"):
		yes, err := p.one()
		return !yes, err
	case p.take("("):
		yes, err := p.either()
		if err == nil && !p.take(")") {
			err = p.unexpected()
		}
		return yes, err
	case p.take("all"), p.take("global"):
		if !p.take("(") || !p.take(")") {
			return false, p.unexpected()
		}
		return true, nil
	case p.take("has"):
		if !p.take("(") {
			return false, p.unexpected()
		}
		name, err := p.name()
		if err == nil && !p.take(")") {
			err = p.unexpected()
		}
		_, yes := p.labels[name]
		return yes, err
	}
	name, err := p.name()
	if err != nil {
		return false, err
	}
	return p.comparison(name)
}

func (p *selection) name() (string, error) {
	if len(p.words) == 0 || strings.ContainsAny(p.words[0], "(){},!=&|'\"…") {
		return "", p.unexpected()
	}
	name := p.words[0]
	p.words = p.words[1:]
	return name, nil
}

func (p *selection) value() (string, error) {
	if len(p.words) == 0 || !strings.ContainsAny(p.words[0][:1], `'"`) || strings.HasSuffix(p.words[0], "…") {
		return "", p.unexpected()
	}
	value := p.words[0][1:]
	p.words = p.words[1:]
	return value, nil
}

// comparison of a label; a missing one differs from every value.
func (p *selection) comparison(name string) (bool, error) {
	have, there := p.labels[name]
	switch {
	case p.take("=="):
		v, err := p.value()
		return there && have == v, err
	case p.take("!="):
		v, err := p.value()
		return !there || have != v, err
	case p.take("contains"):
		v, err := p.value()
		return there && strings.Contains(have, v), err
	case p.take("starts"):
		return p.part(there, func(v string) bool { return strings.HasPrefix(have, v) })
	case p.take("ends"):
		return p.part(there, func(v string) bool { return strings.HasSuffix(have, v) })
	case p.take("in"):
		all, err := p.set()
		return there && slices.Contains(all, have), err
	case p.take("not"):
		if !p.take("in") {
			return false, p.unexpected()
		}
		all, err := p.set()
		return !there || !slices.Contains(all, have), err
	}
	return false, p.unexpected()
}

func (p *selection) part(there bool, holds func(string) bool) (bool, error) {
	if !p.take("with") {
		return false, p.unexpected()
	}
	v, err := p.value()
	return there && holds(v), err
}

func (p *selection) set() ([]string, error) {
	if !p.take("{") {
		return nil, p.unexpected()
	}
	var all []string
	for !p.take("}") {
		if len(all) > 0 && !p.take(",") {
			return nil, p.unexpected()
		}
		v, err := p.value()
		if err != nil {
			return nil, err
		}
		all = append(all, v)
	}
	return all, nil
}
