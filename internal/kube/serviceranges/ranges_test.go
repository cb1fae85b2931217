package serviceranges

import (
	"context"
	"errors"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	networkingv1beta1 "k8s.io/api/networking/v1beta1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

const serves = `{"resources":[{"name":"ingresses"},{"name":"ipaddresses"},{"name":"servicecidrs"},{"name":"servicecidrs/status"}]}`

// finderOf makes a rangesFinder of what each version of networking.k8s.io answers, and counts how
// often it is asked.
func finderOf(answers map[string]string, asked *int) *Finder {
	return &Finder{resources: func(_ context.Context, version string) ([]byte, error) {
		*asked++
		body, ok := answers[version]
		switch {
		case !ok:
			return nil, apierrors.NewNotFound(schema.GroupResource{}, "")
		case body == "forbidden":
			return nil, apierrors.NewForbidden(schema.GroupResource{}, "", nil)
		case body == "down":
			return nil, errors.New("connection refused")
		}
		return []byte(body), nil
	}}
}

func TestWhichVersionHasRanges(t *testing.T) {
	const others = `{"resources":[{"name":"ingresses"},{"name":"networkpolicies"}]}`
	for name, tt := range map[string]struct {
		answers map[string]string
		want    RangeAPI
		fails   bool
	}{
		"1.33":                         {answers: map[string]string{"v1": serves}, want: RangesV1},
		"1.33 with the beta as well":   {answers: map[string]string{"v1": serves, "v1beta1": serves}, want: RangesV1},
		"1.31 with the beta":           {answers: map[string]string{"v1": others, "v1beta1": serves}, want: RangesV1Beta1},
		"1.31":                         {answers: map[string]string{"v1": others}, want: Bitmap},
		"one of the two":               {answers: map[string]string{"v1": others, "v1beta1": `{"resources":[{"name":"ipaddresses"}]}`}, want: Bitmap},
		"who may not discover":         {answers: map[string]string{"v1": "forbidden"}, want: RangesV1},
		"an API server that is silent": {answers: map[string]string{"v1": "down"}, fails: true},
		"no JSON":                      {answers: map[string]string{"v1": "<html>"}, fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			asked := 0
			f := finderOf(tt.answers, &asked)
			got, err := f.Find(t.Context())
			if got != tt.want || (err != nil) != tt.fails {
				t.Fatalf("%q, %v; want %q", got, err, tt.want)
			}
			once := asked
			_, _ = f.Find(t.Context())
			if again := asked > once; again != tt.fails {
				t.Errorf("asked again: %v", again)
			}
		})
	}
}

// TestRangesOfTheBeta has what replumb does to ServiceCIDRs and IPAddresses done to those of
// V1Beta1.
func TestRangesOfTheBeta(t *testing.T) {
	asked := 0
	scheme := runtime.NewScheme()
	if err := errors.Join(networkingv1.AddToScheme(scheme), networkingv1beta1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	in := fake.NewClientBuilder().WithScheme(scheme).Build()
	c := ranged{WithWatch: in, Finder: finderOf(map[string]string{"v1beta1": serves}, &asked)}
	ctx := t.Context()
	w, err := c.Watch(ctx, &networkingv1.IPAddressList{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	made := &networkingv1.IPAddress{
		TypeMeta:   metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "IPAddress"},
		ObjectMeta: metav1.ObjectMeta{Name: "10.96.0.7", Labels: map[string]string{"a": "b"}},
		Spec: networkingv1.IPAddressSpec{
			ParentRef: &networkingv1.ParentReference{Resource: "services", Namespace: "shop", Name: "cart"},
		},
	}
	if err := c.Create(ctx, made); err != nil {
		t.Fatal(err)
	}
	if made.ResourceVersion == "" {
		t.Error("what was created does not say its version")
	}
	if seen, ok := (<-w.ResultChan()).Object.(*networkingv1.IPAddress); !ok || seen.Name != made.Name ||
		seen.Spec.ParentRef.Name != "cart" {
		t.Errorf("watched: %+v", seen)
	}
	beta, got := &networkingv1beta1.IPAddress{}, &networkingv1.IPAddress{}
	if err := errors.Join(
		in.Get(ctx, types.NamespacedName{Name: made.Name}, beta),
		c.Get(ctx, types.NamespacedName{Name: made.Name}, got),
	); err != nil {
		t.Fatal(err)
	}
	if beta.Spec.ParentRef.Name != "cart" || !equality.Semantic.DeepEqual(got.Spec, made.Spec) || got.Labels["a"] != "b" {
		t.Errorf("in the cluster %+v, read %+v", beta, got)
	}
	patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"a":null}}}`))
	if err := c.Patch(ctx, got, patch); err != nil || got.Labels["a"] != "" {
		t.Errorf("patched %v: %v", got.Labels, err)
	}
	rangeMade := &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: "new"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.96.0.0/16"}},
	}
	all := &networkingv1.ServiceCIDRList{}
	if err := errors.Join(
		c.Create(ctx, rangeMade),
		c.List(ctx, all),
	); err != nil || len(all.Items) != 1 ||
		all.Items[0].Spec.CIDRs[0] != "10.96.0.0/16" {
		t.Errorf("listed %+v: %v", all.Items, err)
	}
	if err := errors.Join(c.Delete(ctx, got), c.DeleteAllOf(ctx, &networkingv1.ServiceCIDR{})); err != nil {
		t.Error(err)
	}
	if err := c.Get(ctx, types.NamespacedName{Name: made.Name}, got); !apierrors.IsNotFound(err) {
		t.Errorf("deleted, and %v", err)
	}
}
