package proxyrules

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/replumb/replumb/internal/network/nodecleanup"
)

// behind is how far behind kube-proxy's chains those of the copy are.
const behind = 10

// copyNFTables reads `nft list table FAMILY kube-proxy`, and returns the input of nft -f that makes
// the copy, in the place of an older one. Chains that filter are left out: a Service that had no
// endpoints may have some by now.
func copyNFTables(family, list string) (string, error) {
	var out strings.Builder
	fmt.Fprintf(&out, "add table %s %s\ndelete table %[1]s %[2]s\n", family, nodecleanup.CopiedTable)
	header := "table " + family + " " + proxyTable + " {"
	began := false
	for line := range strings.Lines(list) {
		text := strings.TrimSpace(line)
		switch {
		case !began && text == header:
			line, began = "table "+family+" "+nodecleanup.CopiedTable+" {\n", true
		case strings.HasPrefix(text, "type filter hook "): // nothing leads to its chain then
			continue
		case strings.HasPrefix(text, "type nat hook "):
			var err error
			if line, err = later(line); err != nil {
				return "", err
			}
		}
		out.WriteString(line)
	}
	if !began {
		return "", fmt.Errorf("nft lists no table %s %s", family, proxyTable)
	}
	return out.String(), nil
}

var priority = regexp.MustCompile(`priority (dstnat|srcnat|-?[0-9]+)(?: ([+-]) ([0-9]+))?;`)

// later is the declaration of a chain with its priority behind kube-proxy's.
func later(line string) (string, error) {
	m := priority.FindStringSubmatch(line)
	if m == nil {
		return "", fmt.Errorf("nft lists a chain without a priority that is known: %s", strings.TrimSpace(line))
	}
	at, err := strconv.Atoi(m[1])
	if err != nil { // linux/netfilter_ipv4.h
		at = map[string]int{"dstnat": -100, "srcnat": 100}[m[1]]
	}
	if offset, err := strconv.Atoi(m[2] + m[3]); err == nil {
		at += offset
	}
	return strings.Replace(line, m[0], fmt.Sprintf("priority %d;", at+behind), 1), nil
}

// ofNFTables adds what is in `nft --json list map` of kube-proxy's maps service-ips and
// service-nodeports.
func (all Frontends) ofNFTables(list string) error {
	var listed struct {
		Objects []struct {
			Map *struct {
				Elements [][]json.RawMessage `json:"elem"`
			} `json:"map"`
		} `json:"nftables"`
	}
	if err := json.Unmarshal([]byte(list), &listed); err != nil {
		return fmt.Errorf("reading what nft lists: %w", err)
	}
	for _, o := range listed.Objects {
		if o.Map == nil {
			continue
		}
		for _, e := range o.Map.Elements {
			if len(e) == 0 {
				continue
			}
			if err := all.addKey(e[0]); err != nil {
				return err
			}
		}
	}
	return nil
}

// addKey adds the key of one element, which nft wraps where the element has a comment.
func (all Frontends) addKey(key json.RawMessage) error {
	var k struct {
		Element *struct {
			Value json.RawMessage `json:"val"`
		} `json:"elem"`
		Parts []any `json:"concat"`
	}
	if err := json.Unmarshal(key, &k); err != nil {
		return fmt.Errorf("reading what nft lists: %w", err)
	}
	if k.Element != nil {
		return all.addKey(k.Element.Value)
	}
	var parts []string
	for _, p := range k.Parts {
		parts = append(parts, strings.TrimSuffix(fmt.Sprint(p), ".0"))
	}
	switch len(parts) {
	case 2:
		all.add("node", parts[0], parts[1])
	case 3:
		all.add(parts[0], parts[1], parts[2])
	default:
		return fmt.Errorf("reading what nft lists: %d parts in a key", len(parts))
	}
	return nil
}
