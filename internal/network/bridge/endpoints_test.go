package bridge

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/engine"
)

// heldLists answers each list once it is let, with what there is by then.
type heldLists struct {
	client.Reader
	began chan string
	let   chan error

	mu     sync.Mutex
	slices []discoveryv1.EndpointSlice
}

func (l *heldLists) List(_ context.Context, into client.ObjectList, opts ...client.ListOption) error {
	o := &client.ListOptions{}
	o.ApplyOptions(opts)
	l.mu.Lock()
	into.(*discoveryv1.EndpointSliceList).Items = l.slices
	l.mu.Unlock()
	l.began <- o.Namespace + ": " + o.LabelSelector.String()
	return <-l.let
}

func sliceOf(namespace, service, address string) discoveryv1.EndpointSlice {
	return discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: service, Labels: map[string]string{discoveryv1.LabelServiceName: service},
		},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{address}}},
	}
}

func pair(namespace string, i int) (a, b types.NamespacedName) {
	return types.NamespacedName{Namespace: namespace, Name: fmt.Sprintf("s%d", i)},
		types.NamespacedName{Namespace: namespace, Name: fmt.Sprintf("s%d-bridge", i)}
}

// TestEndpointsShareLists: who asks while a list is under way is answered by one that begins
// afterwards, together with others.
func TestEndpointsShareLists(t *testing.T) {
	l := &heldLists{began: make(chan string), let: make(chan error)}
	e := &Endpoints{Client: l}
	a, b := pair("shop", 0)
	first := e.join(t.Context(), a, b)
	if began := <-l.began; began != "shop: kubernetes.io/service-name in (s0,s0-bridge)" {
		t.Errorf("listed %s", began)
	}
	// What comes to be now, the list that is under way does not have.
	l.mu.Lock()
	l.slices = []discoveryv1.EndpointSlice{
		sliceOf("shop", "s0", "10.0.0.1"), sliceOf("shop", "s1", "10.0.0.1"), sliceOf("shop", "s1-bridge", "10.0.0.2"),
		sliceOf("bank", "s0", "10.0.0.9"), sliceOf("bank", "s0-bridge", "10.0.0.9"),
	}
	l.mu.Unlock()
	var rounds []*round
	for i := range pairsPerList + 4 {
		a, b := pair("shop", i)
		if i == 2 {
			a, b = pair("bank", 0)
		}
		rounds = append(rounds, e.join(t.Context(), a, b))
	}
	l.let <- nil
	<-first.done
	if len(first.slices) != 0 {
		t.Errorf("the first list has %d slices", len(first.slices))
	}
	if began := <-l.began; !strings.HasPrefix(began, ": ") || strings.Count(began, ",") != 2*pairsPerList-1 {
		t.Errorf("then listed %s", began)
	}
	l.let <- nil
	<-rounds[0].done
	if began := <-l.began; !strings.HasPrefix(began, "shop: ") || strings.Count(began, ",") != 2*4-1 {
		t.Errorf("at last listed %s", began)
	}
	l.let <- errors.New("no answer")
	<-rounds[pairsPerList].done
	if rounds[0] != rounds[pairsPerList-1] || rounds[0] == rounds[pairsPerList] || rounds[pairsPerList].err == nil || rounds[0].err != nil {
		t.Error("the error of one list is not that of those who shared it")
	}
}

func TestSameEndpoints(t *testing.T) {
	l := &heldLists{began: make(chan string, 1), let: make(chan error, 1)}
	e := &Endpoints{Client: l}
	a, b := pair("shop", 1)
	refused := errors.New("forbidden")
	for _, tt := range []struct {
		name   string
		slices []discoveryv1.EndpointSlice
		err    error
		want   string
		later  bool
	}{
		{name: "none"},
		{name: "the same", slices: []discoveryv1.EndpointSlice{sliceOf("shop", a.Name, "10.0.0.1"), sliceOf("shop", b.Name, "10.0.0.1")}},
		{
			name: "of another namespace", want: "has 0 ready endpoints", later: true,
			slices: []discoveryv1.EndpointSlice{sliceOf("shop", a.Name, "10.0.0.1"), sliceOf("bank", b.Name, "10.0.0.1")},
		},
		{name: "not listed", err: refused, want: "forbidden"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l.slices = tt.slices
			l.let <- tt.err
			err := e.Same(t.Context(), a, b)
			<-l.began
			if (err == nil) != (tt.want == "") || (err != nil && !strings.Contains(err.Error(), tt.want)) ||
				engine.Retryable(err) != tt.later {
				t.Errorf("got %v", err)
			}
		})
	}
	t.Run("cut off", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := e.Same(ctx, a, b); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		<-l.began
		l.let <- nil
	})
}
