package keptreports

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/reporting/htmlreport"
	"github.com/replumb/replumb/internal/safety/chunklog"
)

func named(name, uid string) *v1alpha1.Migration {
	return &v1alpha1.Migration{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(uid)}}
}

func kept(n int, of, uid string) corev1.ConfigMap {
	return corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Name: fmt.Sprintf("%s%04d", prefix, n), ResourceVersion: "1",
		Labels:      map[string]string{v1alpha1.LabelMigration: of},
		Annotations: map[string]string{annotationMigration: uid},
	}}
}

// TestPlace: a Migration keeps its place, another one takes a new one, and when all are taken the
// oldest.
func TestPlace(t *testing.T) {
	s := &Store{most: 3}
	for name, tt := range map[string]struct {
		have []corev1.ConfigMap
		m    *v1alpha1.Migration
		want string
	}{
		"the first":                     {nil, named("a", "1"), "replumb-report-0001"},
		"its own":                       {[]corev1.ConfigMap{kept(2, "b", "2"), kept(7, "a", "1")}, named("a", "1"), "replumb-report-0007"},
		"of a namesake that is gone":    {[]corev1.ConfigMap{kept(2, "a", "0")}, named("a", "1"), "replumb-report-0003"},
		"the oldest, when all are full": {[]corev1.ConfigMap{kept(5, "b", "2"), kept(4, "c", "3"), kept(6, "d", "4")}, named("a", "1"), "replumb-report-0005"},
	} {
		if got := s.place(tt.have, tt.m); got.Name != tt.want {
			t.Errorf("%s: %s, want %s", name, got.Name, tt.want)
		}
	}
}

// large is a report that takes room: samples that do not compress.
func large(samples int) *htmlreport.Document {
	random := rand.New(rand.NewPCG(1, 2))
	d := &htmlreport.Document{Migration: "a", Summary: "moved", Made: time.Unix(1_800_000_000, 0).UTC()}
	for p := range 2 {
		probe := htmlreport.Probe{Name: fmt.Sprint("probe", p), Sent: 1 << 20}
		for i := range samples {
			at := int64(1_800_000_000 + 10*i)
			probe.Samples = append(
				probe.Samples,
				htmlreport.Point{Start: at, End: at + 10, Sent: random.Int64N(1 << 40), P99: random.Int64N(1 << 40)},
			)
		}
		d.Probes = append(d.Probes, probe)
	}
	return d
}

// TestPack: a report that is too large has fewer samples, says so, and is read again as it is.
func TestPack(t *testing.T) {
	for samples, whole := range map[int]bool{10: true, 5000: false} {
		s := &Store{size: 32 << 10}
		payload, err := s.pack(large(samples))
		if err != nil || len(payload) > s.size {
			t.Fatalf("%d samples: %d bytes, %v", samples, len(payload), err)
		}
		cm := kept(1, "a", "1")
		cm.Annotations[chunklog.AnnotationSum], cm.BinaryData = chunklog.Sum(payload), map[string][]byte{dataReport: payload}
		d, err := unpack(&cm)
		if err != nil {
			t.Fatal(err)
		}
		notes := strings.Join(d.Notes, "\n")
		if d.Summary != "moved" || d.Probes[0].Sent != 1<<20 || (len(d.Probes[0].Samples) == samples) != whole ||
			strings.Contains(notes, "no room") == whole || !strings.Contains(notes, "not in the cluster any more") {
			t.Errorf("%d samples: %d of them, notes %q", samples, len(d.Probes[0].Samples), notes)
		}
		cm.BinaryData[dataReport] = payload[1:]
		if _, err := unpack(&cm); err == nil {
			t.Error("a damaged report was read")
		}
	}
	huge := large(0)
	for range 4000 {
		huge.Notes = append(huge.Notes, fmt.Sprint(rand.Uint64(), rand.Uint64()))
	}
	if _, err := (&Store{size: 8 << 10}).pack(huge); err == nil {
		t.Error("what has no room was packed")
	}
}

func TestNotKept(t *testing.T) {
	var err error = &NotKeptError{Migration: "a", Have: []string{"b", "c"}}
	var missing *NotKeptError
	if !errors.As(err, &missing) || !strings.Contains(missing.Advice(), "of b, c") ||
		!strings.Contains(err.Error(), "migration a does not exist") {
		t.Errorf("%v: %s", err, missing.Advice())
	}
}
