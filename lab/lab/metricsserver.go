package lab

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// metricsServer is the name of the component, the Deployment and the Service.
const metricsServer = "metrics-server"

// MetricsPath is an API that API servers ask metrics-server for, at the ClusterIP of its Service.
const MetricsPath = "/apis/metrics.k8s.io/v1beta1"

//go:embed metricsserver.yaml
var metricsServerTemplate string

// installMetricsServer returns when it has measured every node.
func (l Addons) installMetricsServer(ctx context.Context, o Options) error {
	err := l.installAddon(ctx, MetricsServer, metricsServerTemplate, map[string]any{
		"Namespace": metav1.NamespaceSystem, "Name": metricsServer, "Image": imageRef(metricsServer),
	})
	if err != nil || len(l.with(Worker)) == 0 {
		return err
	}
	err = until(ctx, "metrics of nodes", func(ctx context.Context) error {
		data, err := l.Client().Discovery().RESTClient().Get().AbsPath(MetricsPath + "/nodes").DoRaw(ctx)
		if err != nil {
			return err
		}
		return measured(data, len(l.with(Worker)))
	})
	if err == nil {
		o.say("metrics-server measures nodes and pods")
	}
	return err
}

// measured fails unless a list of metrics has so many nodes.
func measured(list []byte, nodes int) error {
	var all metav1.PartialObjectMetadataList
	if err := json.Unmarshal(list, &all); err != nil {
		return err
	}
	if len(all.Items) < nodes {
		return errors.New("not all are measured yet")
	}
	return nil
}
