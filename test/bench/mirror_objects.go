package main

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"

	"github.com/replumb/replumb/internal/testing/apitest"
)

// object is what a bare client writes.
type object struct {
	resource schema.GroupVersionResource
	content  *unstructured.Unstructured
}

func gvr(group, resource string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: group, Version: "v1", Resource: resource}
}

func build(gvr schema.GroupVersionResource, kind string, i int, more map[string]any) object {
	o := &unstructured.Unstructured{Object: more}
	o.SetAPIVersion(gvr.GroupVersion().String())
	o.SetKind(kind)
	o.SetNamespace(namespaceOf(i))
	o.SetName(fmt.Sprintf("object-%05d", i))
	o.SetLabels(map[string]string{"app": fmt.Sprintf("app-%d", i), "team": "bench"})
	return object{gvr, o}
}

// set is objects that are made as they are written, so that they are never all in memory.
type set struct {
	size int
	make func(i int) object
}

// secret is of about 1 KB.
func secret(i int) object {
	value := make([]byte, 0, 768)
	for len(value) < cap(value) {
		sum := sha256.Sum256(fmt.Append(nil, i, len(value)))
		value = append(value, sum[:]...)
	}
	return build(gvr("", "secrets"), "Secret", i,
		map[string]any{"type": "Opaque", "data": map[string]any{"key": base64.StdEncoding.EncodeToString(value)}})
}

// mixed is one of ten sorts, some of which are of the same kind.
func mixed(i int) object {
	app := map[string]any{"app": fmt.Sprintf("app-%d", i)}
	switch i % 10 {
	case 0, 1, 2:
		return build(gvr("", "configmaps"), "ConfigMap", i,
			map[string]any{"data": map[string]any{"config.yaml": fmt.Sprintf("id: %d\nlevel: info\n", i)}})
	case 3:
		return build(gvr("", "serviceaccounts"), "ServiceAccount", i, map[string]any{})
	case 4:
		return build(gvr("rbac.authorization.k8s.io", "roles"), "Role", i, map[string]any{"rules": []any{map[string]any{
			"apiGroups": []any{""}, "resources": []any{"configmaps"}, "verbs": []any{"get", "list"},
		}}})
	case 5, 6:
		return build(gvr("", "services"), "Service", i, map[string]any{"spec": map[string]any{
			"selector": app, "ports": []any{map[string]any{"name": "http", "port": int64(80), "targetPort": int64(8080)}},
		}})
	case 7, 8:
		return build(gvr("apps", "deployments"), "Deployment", i, map[string]any{"spec": map[string]any{
			"replicas": int64(2), "selector": map[string]any{"matchLabels": app},
			"template": map[string]any{"metadata": map[string]any{"labels": app}, "spec": map[string]any{"containers": []any{
				map[string]any{"name": "main", "image": "registry.example.com/app:1", "env": []any{
					map[string]any{"name": "ID", "value": fmt.Sprint(i)},
				}, "resources": map[string]any{"requests": map[string]any{"cpu": "100m", "memory": "64Mi"}}},
			}}},
		}})
	default:
		return build(gvr("networking.k8s.io", "networkpolicies"), "NetworkPolicy", i, map[string]any{"spec": map[string]any{
			"podSelector": map[string]any{"matchLabels": app}, "policyTypes": []any{"Ingress"},
			"ingress": []any{map[string]any{"from": []any{map[string]any{"podSelector": map[string]any{}}}}},
		}})
	}
}

// create writes by plain creation.
func (o mirror) create(ctx context.Context, s *apitest.Server, set set) error {
	client, err := dynamic.NewForConfig(quick(s.Config))
	if err != nil {
		return err
	}
	return o.each(ctx, s, set, func(ctx context.Context, w object) error {
		_, err := client.Resource(w.resource).Namespace(w.content.GetNamespace()).Create(ctx, w.content, metav1.CreateOptions{})
		return err
	})
}

// apply writes by server-side apply, and asks for no more than metadata in the answer, which is the least there is.
func (o mirror) apply(ctx context.Context, s *apitest.Server, set set) error {
	client, err := metadata.NewForConfig(quick(s.Config))
	if err != nil {
		return err
	}
	return o.each(ctx, s, set, func(ctx context.Context, w object) error {
		body, err := json.Marshal(w.content.Object)
		if err != nil {
			return err
		}
		_, err = client.Resource(w.resource).Namespace(w.content.GetNamespace()).Patch(ctx, w.content.GetName(), types.ApplyPatchType, body,
			metav1.PatchOptions{FieldManager: "bench"})
		return err
	})
}

func (o mirror) each(ctx context.Context, s *apitest.Server, set set, write func(context.Context, object) error) error {
	if err := makeNamespaces(ctx, s); err != nil {
		return err
	}
	return inParallel(set.size, o.parallel, func(i int) error { return write(ctx, set.make(i)) })
}
