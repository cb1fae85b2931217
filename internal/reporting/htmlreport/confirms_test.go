package htmlreport

import (
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/replumb/replumb/api/v1alpha1"
)

// TestConfirms: only what people vouch for is in the report as vouched for.
func TestConfirms(t *testing.T) {
	m := &v1alpha1.Migration{}
	m.Annotations = map[string]string{
		v1alpha1.AnnotationAPIServers: "Repointed", "replumb.dev/cluster": "uid", "replumb.dev/requested-at": "now", "replumb.dev/set": "a,b",
		v1alpha1.AnnotationApprove: "plan:abc",
	}
	var got []string
	for _, c := range confirms(m) {
		got = append(got, c.Annotation+"="+c.Value)
	}
	if want := []string{v1alpha1.AnnotationAPIServers + "=Repointed"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	m.Annotations = map[string]string{v1alpha1.AnnotationApprove: "gate:api-servers=Repointed"}
	if got := confirms(m); len(got) != 1 {
		t.Errorf("%+v", got)
	}
}

// TestVouchingIsByUsers: every annotation that users set on a Migration vouches for something, or
// approves.
func TestVouchingIsByUsers(t *testing.T) {
	page, err := os.ReadFile("../../../docs/annotations.md")
	if err != nil {
		t.Fatal(err)
	}
	want := append(vouching(), v1alpha1.AnnotationApprove)
	var told []string
	for _, row := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\| annotation \\| Migration \\| users \\|").FindAllStringSubmatch(string(page), -1) {
		told = append(told, row[1])
	}
	slices.Sort(want)
	slices.Sort(told)
	if !slices.Equal(told, want) {
		t.Errorf("docs/annotations.md has %q, and the report %q", told, want)
	}
}
