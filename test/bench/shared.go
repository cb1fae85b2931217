package main

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
)

// namespaces is over how many of them objects are spread.
const namespaces = 20

func namespaceOf(i int) string { return fmt.Sprintf("bench-%02d", i%namespaces) }

func makeNamespaces(ctx context.Context, c client.Client) error {
	for i := range namespaces {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespaceOf(i)}}
		if err := client.IgnoreAlreadyExists(c.Create(ctx, ns)); err != nil {
			return err
		}
	}
	return nil
}

// quick is a configuration of a client that keeps nothing back.
func quick(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.QPS, config.WarningHandler = -1, rest.NoWarnings{}
	return config
}

func inParallel(n, limit int, do func(int) error) error {
	var eg errgroup.Group
	eg.SetLimit(limit)
	for i := range n {
		eg.Go(func() error { return do(i) })
	}
	return eg.Wait()
}

func migrationOf(spec v1alpha1.MigrationSpec) *v1alpha1.Migration {
	return &v1alpha1.Migration{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "Migration"},
		ObjectMeta: metav1.ObjectMeta{Name: "bench"},
		Spec:       spec,
	}
}
