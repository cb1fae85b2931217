package docs_test

import (
	"fmt"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"sigs.k8s.io/yaml"

	"github.com/replumb/replumb/hack/manual/page"
)

var (
	// link is a link or an image, inline or as a definition.
	link = regexp.MustCompile(`\]\(([^)\s]+)(?:\s+"[^"]*")?\)|(?m:^\[[^\]]+\]:\s+(\S+))`)
	// named is an anchor in HTML.
	named = regexp.MustCompile(`<a\s+(?:name|id)="([^"]+)"`)
	// linked is a link in a heading, of which the text is left.
	linked = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
)

// TestLinks: every link to a file of this repository, and to a heading of a page, leads somewhere.
func TestLinks(t *testing.T) {
	problems(t, func(f textFile) []string { return brokenLinks(f, readFile) })
}

// TestPagesOfTheSite: every page that a page links to is one of the site's, whose generator is not a part of these tests.
func TestPagesOfTheSite(t *testing.T) {
	body, err := os.ReadFile("../hack/site/hugo.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var site struct {
		Module struct{ Mounts []struct{ Source string } }
	}
	if err := yaml.Unmarshal(body, &site); err != nil {
		t.Fatal(err)
	}
	within := func(name string) bool {
		return slices.ContainsFunc(site.Module.Mounts, func(m struct{ Source string }) bool {
			at := path.Join("hack/site", m.Source)
			return name == at || strings.HasPrefix(name, at+"/")
		})
	}
	problems(t, func(f textFile) (out []string) {
		if !f.markdown() || !within(f.name) {
			return nil
		}
		for _, target := range links(f.text) {
			to, _, _ := strings.Cut(target, "#")
			if name := path.Join(path.Dir(f.name), to); strings.HasSuffix(to, ".md") && !strings.Contains(to, ":") && !within(name) {
				out = append(out, fmt.Sprintf("the link %s leads to no page of the site (hack/site/hugo.yaml)", target))
			}
		}
		return out
	})
}

// readFile reads a file or folder of the repository. A folder is empty.
func readFile(name string) (string, error) {
	info, err := os.Stat("../" + name)
	if err != nil || info.IsDir() {
		return "", err
	}
	text, err := os.ReadFile("../" + name)
	return string(text), err
}

// brokenLinks are the links of a page that lead nowhere, among those to files that read reads.
func brokenLinks(f textFile, read func(name string) (string, error)) []string {
	if !f.markdown() {
		return nil
	}
	var broken []string
	for _, target := range links(f.text) {
		if regexp.MustCompile(`^[a-z]+:`).MatchString(target) { // of the web
			continue
		}
		file, anchor, _ := strings.Cut(target, "#")
		to, text := f.name, f.text
		if file != "" {
			to = path.Join(path.Dir(f.name), file)
			var err error
			if text, err = read(to); err != nil || strings.HasPrefix(to, "..") {
				broken = append(broken, fmt.Sprintf("the link %s leads to no file", target))
				continue
			}
		}
		if anchor != "" && !slices.Contains(anchors(text), anchor) {
			broken = append(broken, fmt.Sprintf("the link %s leads to no heading of %s", target, to))
		}
	}
	return broken
}

// links are the targets of the links of a page, in the order in which they stand. What is code links nowhere.
func links(markdown string) []string {
	var text []string
	for _, l := range page.Lines(markdown) {
		if !l.Code {
			text = append(text, l.Text)
		}
	}
	var all []string
	for _, found := range link.FindAllStringSubmatch(codeSpan.ReplaceAllString(strings.Join(text, "\n"), "code"), -1) {
		all = append(all, found[1]+found[2])
	}
	return all
}

// anchors are those that GitHub gives the headings of a page, and those that the page has in HTML.
func anchors(markdown string) []string {
	var all []string
	seen := map[string]int{}
	for _, l := range page.Lines(markdown) {
		heading := strings.TrimLeft(l.Text, "#")
		if level := len(l.Text) - len(heading); l.Code || level == 0 || level > 6 || !strings.HasPrefix(heading, " ") {
			continue
		}
		a := anchor(heading)
		seen[a]++
		if n := seen[a]; n > 1 {
			a = fmt.Sprintf("%s-%d", a, n-1)
		}
		all = append(all, a)
	}
	for _, found := range named.FindAllStringSubmatch(markdown, -1) {
		all = append(all, found[1])
	}
	return all
}

// anchor is that of a heading: small letters, digits, dashes and underscores are left, and spaces become dashes.
func anchor(heading string) string {
	text := strings.TrimSpace(linked.ReplaceAllString(heading, "$1"))
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case unicode.IsLetter(r), unicode.IsDigit(r), unicode.IsMark(r), r == '-', r == '_':
			return unicode.ToLower(r)
		}
		return -1
	}, text)
}

// TestBrokenLinks shows which links are found to be broken.
func TestBrokenLinks(t *testing.T) {
	files := map[string]string{"docs/b.md": "# B: the `end`, and 1.2\n\n## Same\n\n## Same\n\n<a name=\"old\"></a>\n"}
	read := func(name string) (string, error) {
		if text, ok := files[name]; ok {
			return text, nil
		}
		return "", os.ErrNotExist
	}
	for text, broken := range map[string]bool{
		"[a](b.md)":                        false,
		"[a](b.md#b-the-end-and-12)":       false,
		"[a\nb](b.md#same-1)":              false,
		"[a](b.md#old)":                    false,
		"[a](https://example.com/x#y)":     false,
		"`[a](c.md)`":                      false,
		"```\n[a](c.md)\n```":              false,
		"# Here\n\n[a](#here)":             false,
		"[a](c.md)":                        true,
		"[a](b.md#same-2)":                 true,
		"[a](#here)":                       true,
		"![a](c.png)":                      true,
		"[a]: c.md":                        true,
		"```\n# Here\n```\n\n[a](#here)":   true,
		"[a](../../outside.md)":            true,
		"[a](b.md#B-the-end-and-12 \"t\")": true,
	} {
		if got := brokenLinks(textFile{"docs/a.md", text}, read); len(got) > 0 != broken {
			t.Errorf("%q: %q", text, got)
		}
	}
}

// unreached are the pages to which no links lead from the first, over however many others.
func unreached(pages map[string]string, first string) []string {
	seen := map[string]bool{first: true}
	for next := []string{first}; len(next) > 0; next = next[1:] {
		for _, target := range links(pages[next[0]]) {
			file, _, _ := strings.Cut(target, "#")
			to := path.Join(path.Dir(next[0]), file)
			if _, ok := pages[to]; ok && file != "" && !seen[to] {
				seen[to] = true
				next = append(next, to)
			}
		}
	}
	var all []string
	for name := range pages {
		if !seen[name] {
			all = append(all, name)
		}
	}
	slices.Sort(all)
	return all
}

// TestPagesAreReached: who begins at docs/index.md finds every page.
func TestPagesAreReached(t *testing.T) {
	pages := map[string]string{}
	for _, f := range readers(t) {
		if f.markdown() {
			pages[f.name] = f.text
		}
	}
	for _, name := range unreached(pages, "docs/index.md") {
		t.Errorf("no link leads from docs/index.md to %s", name)
	}
}

// TestUnreached shows which pages are found.
func TestUnreached(t *testing.T) {
	pages := map[string]string{"a.md": "[b](d/b.md#x)", "d/b.md": "[c](../c.md)", "c.md": "[a](a.md)", "alone.md": "[a](a.md)"}
	if got := unreached(pages, "a.md"); !slices.Equal(got, []string{"alone.md"}) {
		t.Errorf("%q", got)
	}
}

// TestQuestionsHaveLinks: every answer of docs/faq.md says where more of it stands.
func TestQuestionsHaveLinks(t *testing.T) {
	text, err := readFile("docs/faq.md")
	if err != nil {
		t.Fatal(err)
	}
	questions := strings.Split(text, "\n### ")[1:]
	for _, q := range questions {
		title, answer, _ := strings.Cut(q, "\n")
		if len(links(answer)) == 0 {
			t.Errorf("%s: no link says where more of it stands", title)
		}
	}
	if len(questions) < 10 {
		t.Errorf("only %d questions", len(questions))
	}
}

// unindexed are the sections of a page of messages to which no row of its index leads, and the rows whose message their section lacks.
func unindexed(text string) (wrong []string) {
	_, index, _ := strings.Cut(text, "\n## Find the message\n")
	index, _, _ = strings.Cut(index, "\n## ")
	sections := map[string]string{}
	for _, section := range strings.Split(text, "\n### ")[1:] {
		title, body, _ := strings.Cut(section, "\n")
		body, _, _ = strings.Cut(body, "\n## ")
		sections[anchor(title)] = strings.Join(strings.Fields(body), " ")
	}
	rows := regexp.MustCompile("(?m)^\\| `([^`]+)` \\| \\[[^\\]]+\\]\\(#([^)]+)\\) \\|$").FindAllStringSubmatch(index, -1)
	for _, row := range rows {
		message := strings.TrimSpace(strings.TrimSuffix(row[1], "..."))
		if !strings.Contains(sections[row[2]], message) {
			wrong = append(wrong, fmt.Sprintf("#%s does not have %q", row[2], message))
		}
	}
	for name, body := range sections {
		indexed := slices.ContainsFunc(rows, func(row []string) bool { return row[2] == name })
		if strings.Contains(body, "**You see** `") && !indexed {
			wrong = append(wrong, fmt.Sprintf("no row leads to #%s", name))
		}
	}
	return wrong
}

// TestMessagesAreIndexed: who searches for a message finds where docs/troubleshooting.md explains it.
func TestMessagesAreIndexed(t *testing.T) {
	text, err := readFile("docs/troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range unindexed(text) {
		t.Error(p)
	}
	const section = "\n## It stops\n\n### At a gate\n\n**You see** `waits: ...` here.\n"
	for row, want := range map[string]int{"| `waits: ...` | [x](#at-a-gate) |": 0, "| `stops` | [x](#at-a-gate) |": 1, "| `waits` | [x](#gone) |": 2, "": 1} {
		if got := unindexed("\n## Find the message\n\n" + row + "\n" + section); len(got) != want {
			t.Errorf("%s: %q", row, got)
		}
	}
}
