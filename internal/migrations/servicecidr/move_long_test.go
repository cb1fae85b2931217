//go:build apiserver && long

package servicecidr

import (
	"testing"

	"github.com/replumb/replumb/api/v1alpha1"
)

// TestAnnotationsAreHints: where a Service came from is known by the addresses that are reserved for it, whatever it says.
func TestAnnotationsAreHints(t *testing.T) {
	for name, damage := range map[string]func(notes map[string]string){
		"target removed": func(notes map[string]string) { delete(notes, v1alpha1.AnnotationTargetIP) },
		"another origin": func(notes map[string]string) { notes[v1alpha1.AnnotationOldIP] = "10.96.0.10" },
		"all removed":    func(notes map[string]string) { clear(notes) },
		"another owner":  func(notes map[string]string) { notes[v1alpha1.LabelMigration] = "other" },
	} {
		t.Run(name, func(t *testing.T) {
			f := setup(t)
			was := f.service("cart", at("10.96.3.7"))
			f.apply()
			damaged := f.get("cart")
			damage(damaged.Annotations)
			f.must(server.Update(t.Context(), damaged))
			f.apply()
			f.checkBridge(was, f.get("cart"), v1alpha1.BridgeLoadBalancer)
			f.must(f.rollback())
			if is := f.get("cart"); is.Spec.ClusterIP != "10.96.3.7" || len(is.Annotations) > 0 {
				t.Errorf("after rollback it is at %s, with %v", is.Spec.ClusterIP, is.Annotations)
			}
			f.nothingLeft()
		})
	}
}
