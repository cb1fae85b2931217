// Package webui shows a migration in a browser, with its report and what people can confirm. It is
// served on this machine alone, to a browser that has the URL.
package webui

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strings"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/reporting/progress"
)

// Offer is an annotation of the Migration by which people confirm what the migration waits for.
type Offer struct {
	// ID stands for the offer as a whole: what is confirmed is what was shown.
	ID string `json:"id"`
	// For is the waiting gate or condition.
	For        string `json:"for"`
	Annotation string `json:"annotation"`
	Value      string `json:"value"`
}

func confirming() []string {
	return []string{"approve", "api-servers", "kubelets", "controller-managers", "installer"}
}

// Offers are the confirmations that gates, and conditions of the Migration, ask for by the command
// that gives them:
//
//	kubectl annotate migrations.replumb.dev NAME --overwrite replumb.dev/KEY=VALUE
//
// Whatever else stands there is for people to do elsewhere.
func Offers(m *v1alpha1.Migration, v progress.View) (all []Offer) {
	asks := regexp.MustCompile(`kubectl annotate migrations\.replumb\.dev ` + regexp.QuoteMeta(m.Name) +
		` --overwrite (replumb\.dev/(?:` + strings.Join(confirming(), "|") + `))=([A-Za-z0-9.,:=_/-]+)`)
	seen := map[string]bool{}
	find := func(title, text string) {
		for _, found := range asks.FindAllStringSubmatch(text, -1) {
			o := Offer{For: title, Annotation: found[1], Value: found[2]}
			if o.ID = o.id(); !seen[o.ID] && m.Annotations[o.Annotation] != o.Value {
				seen[o.ID] = true
				all = append(all, o)
			}
		}
	}
	for _, g := range v.Gates {
		find(g.Title, g.Guide)
	}
	for _, c := range m.Status.Conditions {
		find(c.Reason, c.Message)
	}
	return all
}

func (o Offer) id() string {
	sum := sha256.Sum256([]byte(o.Annotation + "\x00" + o.Value))
	return hex.EncodeToString(sum[:])[:16]
}
