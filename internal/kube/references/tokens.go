package references

import (
	"net/netip"
	"strconv"
	"strings"
)

const (
	zoneEnd4 = ".in-addr.arpa"
	zoneEnd6 = ".ip6.arpa"
)

// Values lists the addresses and ranges in a text that the Scanner looks for, as written, each
// once. Only whole words count: 10.96.0.1 is not in 10.96.0.10, 10.96.0.1.nip.io or v10.96.0.1; it
// is in http://10.96.0.1:80/x.
func (s *Scanner) Values(text string) []string {
	var all []string
	note := func(value string) {
		for _, have := range all {
			if have == value {
				return
			}
		}
		if len(all) < perObject {
			all = append(all, value)
		}
	}
	s.each(text, note)
	return all
}

func (s *Scanner) each(text string, note func(string)) {
	for at := 0; at < len(text); {
		if !inWord(text[at]) {
			at++
			continue
		}
		end, marks := at, false
		for end < len(text) && inWord(text[end]) {
			marks = marks || text[end] == '.' || text[end] == ':'
			end++
		}
		if marks { // most words are plain
			s.word(text[at:end], text[end:], note)
		}
		at = end
	}
}

// inWord are characters of words, and the colon, which may belong to an IPv6 address or follow one.
func inWord(c byte) bool {
	return c == '.' || c == ':' || c == '_' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c >= 0x80
}

func (s *Scanner) word(word, rest string, note func(string)) {
	if s.literal(word, rest, note) {
		return
	}
	for word != "" {
		part, others, more := strings.Cut(word, ":")
		word = others
		after := rest
		if more {
			after = ":" // whatever it is, not the length of a range
		}
		if part != "" && part[0] >= '0' && part[0] <= '9' {
			s.literal(part, after, note)
		}
	}
}

func (s *Scanner) literal(text, rest string, note func(string)) bool {
	a, written, ok := parse(text)
	if !ok {
		return false
	}
	if bits, length := prefixLength(rest); length > 0 && written == text {
		p, err := a.Prefix(bits)
		whole := bits == a.BitLen() // a range of one address is that address
		if err == nil && (whole && s.has(a) || !whole && p.Addr() == a && (s.every || s.concerns(p))) {
			note(text + rest[:length])
			return true
		}
	}
	if s.has(a) {
		note(written)
	}
	return true
}

func (s *Scanner) has(a netip.Addr) bool { return s.every || s.addresses[a] }

// parse reads an address without the dot or colon of a sentence behind it.
func parse(text string) (a netip.Addr, written string, ok bool) {
	if !plausible(text) {
		return netip.Addr{}, "", false
	}
	a, err := netip.ParseAddr(text)
	if err != nil && (strings.HasSuffix(text, ".") || strings.HasSuffix(text, ":")) {
		text = text[:len(text)-1]
		a, err = netip.ParseAddr(text)
	}
	return a.Unmap(), text, err == nil
}

const longest = len("ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255.")

func plausible(text string) bool {
	if len(text) > longest {
		return false
	}
	for i := range len(text) {
		c := text[i]
		if c != '.' && c != ':' && (c < '0' || c > '9') && (c < 'a' || c > 'f') && (c < 'A' || c > 'F') {
			return false
		}
	}
	return true
}

// prefixLength reads "/16" at the start of a text; length is 0 if there is none.
func prefixLength(text string) (bits, length int) {
	if text == "" || text[0] != '/' {
		return 0, 0
	}
	end := 1
	for end < len(text) && text[end] >= '0' && text[end] <= '9' {
		end++
	}
	if end == 1 || end > 4 {
		return 0, 0
	}
	if end < len(text) && (text[end] == '/' || inWord(text[end]) && !endsSentence(text[end:])) {
		return 0, 0
	}
	bits, err := strconv.Atoi(text[1:end])
	if err != nil {
		return 0, 0
	}
	return bits, end
}

func endsSentence(text string) bool {
	return (text[0] == '.' || text[0] == ':') && (len(text) == 1 || !inWord(text[1]))
}

// Zones lists reverse zones in a text, such as 96.10.in-addr.arpa, of the old ranges alone.
func (s *Scanner) Zones(text string) []string {
	var all []string
	eachZone(text, func(word string, p netip.Prefix) {
		if s.concerns(p) && len(all) < perObject {
			all = append(all, word)
		}
	})
	return all
}

func eachZone(text string, take func(word string, of netip.Prefix)) {
	for _, word := range strings.FieldsFunc(text, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '.' && r != '-'
	}) {
		word = strings.ToLower(strings.TrimSuffix(word, "."))
		if p, ok := zone(word); ok {
			take(word, p)
		}
	}
}

// zone is the range of a reverse zone (RFC 1035 section 3.5, RFC 3596 section 2.5).
func zone(name string) (netip.Prefix, bool) {
	if digits, ok := strings.CutSuffix(name, zoneEnd4); ok {
		return reverse(digits, 4, 8, func(labels []string) string {
			for len(labels) < 4 {
				labels = append(labels, "0")
			}
			return strings.Join(labels, ".")
		})
	}
	if digits, ok := strings.CutSuffix(name, zoneEnd6); ok {
		return reverse(digits, 32, 4, func(labels []string) string {
			var b strings.Builder
			for i := range 32 {
				if i > 0 && i%4 == 0 {
					b.WriteByte(':')
				}
				if i < len(labels) {
					b.WriteString(labels[i])
				} else {
					b.WriteByte('0')
				}
			}
			return b.String()
		})
	}
	return netip.Prefix{}, false
}

func reverse(text string, most, bitsEach int, join func([]string) string) (netip.Prefix, bool) {
	labels := strings.Split(text, ".")
	if len(labels) > most {
		return netip.Prefix{}, false
	}
	for i, j := 0, len(labels)-1; i < j; i, j = i+1, j-1 {
		labels[i], labels[j] = labels[j], labels[i]
	}
	for _, l := range labels {
		if most == 32 && len(l) != 1 {
			return netip.Prefix{}, false
		}
	}
	bits := len(labels) * bitsEach
	a, err := netip.ParseAddr(join(labels))
	if err != nil {
		return netip.Prefix{}, false
	}
	return netip.PrefixFrom(a, bits), true
}

// Tokens lists all addresses, ranges and reverse zones in a text, in order, each once. A Scanner
// finds something in these, one a line, if and only if it does in the text.
func Tokens(text string) []string {
	var all []string
	seen := map[string]bool{}
	note := func(value string) {
		if !seen[value] {
			seen[value] = true
			all = append(all, value)
		}
	}
	(&Scanner{every: true}).each(text, note)
	eachZone(text, func(word string, _ netip.Prefix) { note(word) })
	return all
}
