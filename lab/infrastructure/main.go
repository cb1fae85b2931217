// Command infrastructure makes the machines of a lab that Cluster API orders: it is the infrastructure provider, as far as the contract v1beta2 is
// about LabCluster and LabMachine. It runs on the host, where machines are made, and belongs to the lab.
// https://github.com/kubernetes-sigs/cluster-api/tree/v1.14.2/docs/book/src/developer/providers/contracts
package main

import (
	"fmt"
	"os"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	metrics "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/replumb/replumb/lab/lab"
)

func main() {
	lab.RunMachineIfAsked()
	ctrl.SetLogger(klog.Background())
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(name, kubeconfig string) error {
	l, err := lab.Open(name)
	if err != nil {
		return err
	}
	if err := l.ClusterAPI().Enter(); err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	manager, err := ctrl.NewManager(config, ctrl.Options{
		Metrics: metrics.Options{BindAddress: "0"},
		Client:  client.Options{Cache: &client.CacheOptions{Unstructured: true}},
	})
	if err != nil {
		return err
	}
	c := manager.GetClient()
	if err := ctrl.NewControllerManagedBy(manager).For(infrastructure("LabCluster")).Complete(&clusters{c, l.ClusterAPI().Endpoint()}); err != nil {
		return err
	}
	if err := ctrl.NewControllerManagedBy(manager).For(infrastructure("LabMachine")).Complete(&machines{c, l.ClusterAPI()}); err != nil {
		return err
	}
	return manager.Start(ctrl.SetupSignalHandler())
}

// infrastructure is an object of this provider.
func infrastructure(kind string) *unstructured.Unstructured {
	return object(schema.GroupVersionKind{Group: "infrastructure.cluster.x-k8s.io", Version: "v1alpha1", Kind: kind})
}

// core is one of Cluster API itself.
func core(kind string) *unstructured.Unstructured {
	return object(schema.GroupVersionKind{Group: "cluster.x-k8s.io", Version: "v1beta2", Kind: kind})
}

func object(kind schema.GroupVersionKind) *unstructured.Unstructured {
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(kind)
	return o
}
