//go:build apiserver && long

package backup

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/safety/chunklog"
)

// TestForgedBackupIsNoticed: who may write ConfigMaps in replumb's namespace could else say where
// Services were, and have a rollback of a network apply what it likes with the operator's rights.
// The checksum in the object itself is right.
func TestForgedBackupIsNoticed(t *testing.T) {
	s, m := migrated(t)
	objects := created(t, s, service("cart"), service("pay"))
	if err := Store(t.Context(), s, m, objects[:1]); err != nil {
		t.Fatal(err)
	}
	forged := objects[1].DeepCopyObject().(*corev1.Service)
	forged.Spec.ClusterIP = "203.0.113.9"
	body, err := manifest(s, Key{UID: forged.UID}, forged)
	if err != nil {
		t.Fatal(err)
	}
	packs, err := pack([]line{body}, chunklog.Size)
	if err != nil {
		t.Fatal(err)
	}
	chunk := packs[0].build(m, 7, false)
	if err := s.Create(t.Context(), chunk); err != nil {
		t.Fatal(err)
	}
	_, err = Read(t.Context(), s, "shop")
	var corrupt *CorruptError
	if !errors.As(err, &corrupt) || !errors.Is(err, ErrForeign) || !strings.Contains(err.Error(), chunk.GetName()) ||
		corrupt.Advice() == "" {
		t.Errorf("read with %v", err)
	}
	if err := Store(t.Context(), s, m, objects); !errors.Is(err, ErrForeign) {
		t.Errorf("stored with %v", err)
	}
	if err := s.Delete(t.Context(), chunk); err != nil {
		t.Fatal(err)
	}
	if err := Store(t.Context(), s, m, objects); err != nil {
		t.Error(err)
	}
	if all, err := Read(t.Context(), s, "shop"); err != nil || len(all) != 2 {
		t.Errorf("%d objects, %v", len(all), err)
	}
}

// TestOldBackupsAreRead: an older build has noted no digests. They are noted with the next that is
// stored.
func TestOldBackupsAreRead(t *testing.T) {
	s, m := migrated(t)
	objects := created(t, s, service("cart"), service("pay"))
	if err := Store(t.Context(), s, m, objects[:1]); err != nil {
		t.Fatal(err)
	}
	old := &v1alpha1.Migration{}
	if err := s.Get(t.Context(), client.ObjectKey{Name: "shop"}, old); err != nil {
		t.Fatal(err)
	}
	if old.Status.Backups = nil; s.Status().Update(t.Context(), old) != nil {
		t.Fatal("the status was not written")
	}
	if have, err := Stored(t.Context(), s, "shop"); err != nil || len(have) != 1 {
		t.Errorf("stored: %v, %v", have, err)
	}
	if err := Store(t.Context(), s, m, objects); err != nil {
		t.Fatal(err)
	}
	if err := s.Get(t.Context(), client.ObjectKey{Name: "shop"}, old); err != nil || len(old.Status.Backups) != 2 {
		t.Errorf("digests: %v, %v", old.Status.Backups, err)
	}
}

func TestRefused(t *testing.T) {
	s, m := migrated(t)
	var bad *ManifestError
	err := Store(t.Context(), s, m, []client.Object{service("never-read")})
	if !errors.As(err, &bad) || !strings.Contains(err.Error(), "Service shop/never-read: it has no UID") {
		t.Errorf("without UID: %v", err)
	}
	err = Store(t.Context(), s, &v1alpha1.Migration{ObjectMeta: metav1.ObjectMeta{Name: "gone"}}, many(1))
	if client.IgnoreNotFound(err) != nil || err == nil {
		t.Errorf("without Migration: %v", err)
	}
}

func TestDamageIsFound(t *testing.T) {
	for name, damage := range map[string]func(*corev1.ConfigMap){
		"cut": func(cm *corev1.ConfigMap) {
			cm.BinaryData[dataObjects] = cm.BinaryData[dataObjects][:50]
		},
		"flipped": func(cm *corev1.ConfigMap) { cm.BinaryData[dataObjects][60] ^= 1 },
		"replaced": func(cm *corev1.ConfigMap) {
			other, _ := pack([]line{{json: []byte(`{"apiVersion":"v1","kind":"Service","metadata":{"name":"x"}}`)}}, chunklog.Size)
			cm.BinaryData[dataObjects] = other[0].payload
		},
		"emptied": func(cm *corev1.ConfigMap) { cm.BinaryData = nil },
		"not what it says": func(cm *corev1.ConfigMap) {
			cm.BinaryData[dataObjects] = []byte("no gzip")
			cm.Annotations[chunklog.AnnotationSum] = chunklog.Sum([]byte("no gzip"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, m := migrated(t)
			objects := created(t, s, service("cart"))
			if err := Store(t.Context(), s, m, objects); err != nil {
				t.Fatal(err)
			}
			cm := configMaps(t, s)[0]
			if err := s.Delete(t.Context(), cm.DeepCopy()); err != nil {
				t.Fatal(err)
			}
			cm.ResourceVersion, cm.UID = "", ""
			damage(&cm)
			if err := s.Create(t.Context(), &cm); err != nil {
				t.Fatal(err)
			}
			step := NewStep(s, m, "secure/backup", "Back up", objects)
			state, err := step.State(t.Context())
			var corrupt *CorruptError
			if state != engine.Blocked || !errors.As(err, &corrupt) || !strings.Contains(err.Error(), cm.Name) {
				t.Errorf("state: %v, %v", state, err)
			}
			for what, err := range map[string]error{"store": step.Do(t.Context()), "verify": step.Verify(t.Context())} {
				if !errors.As(err, &corrupt) {
					t.Errorf("%s: %v", what, err)
				}
			}
			if _, err := Export(t.Context(), s, "shop", t.TempDir()); !errors.As(err, &corrupt) {
				t.Errorf("export: %v", err)
			}
		})
	}
}
