package noderanges

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestStartedBefore has pods of a second before, of, and after that of their Node.
func TestStartedBefore(t *testing.T) {
	at := time.Date(2026, 11, 23, 7, 0, 0, 0, time.UTC)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(at)}}
	for name, test := range map[string]struct {
		created time.Time
		ended   map[types.UID]bool
		want    bool
	}{
		"older":                            {at.Add(-time.Second), nil, true},
		"older, after others were ended":   {at.Add(-time.Second), map[types.UID]bool{"b": true}, true},
		"younger":                          {at.Add(time.Second), nil, false},
		"same second":                      {at, nil, true},
		"same second, is ending":           {at, map[types.UID]bool{"a": true}, true},
		"same second, came after the last": {at, map[types.UID]bool{"b": true}, false},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "a", CreationTimestamp: metav1.NewTime(test.created)}}
			if got := startedBefore(pod, node, test.ended); got != test.want {
				t.Errorf("got %t", got)
			}
		})
	}
}
