package e2e

import (
	"context"
	"encoding/base64"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/replumb/replumb/internal/testing/pki"
	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/workload"
)

// A webhook that is asked about all pods and Services but those of its own namespace, and without which none is admitted.
const guardObjects = `
apiVersion: v1
kind: Namespace
metadata: {name: guard}
---
apiVersion: v1
kind: Secret
metadata: {namespace: guard, name: guard}
data: {tls.crt: %[1]s, tls.key: %[2]s}
---
apiVersion: apps/v1
kind: Deployment
metadata: {namespace: guard, name: guard}
spec:
  replicas: 2
  selector: {matchLabels: {app: guard}}
  template:
    metadata: {labels: {app: guard}}
    spec:
      containers:
        - name: guard
          image: %[3]s
          imagePullPolicy: Never
          env: [{name: ADMIT_CERT, value: /tls/tls.crt}, {name: ADMIT_KEY, value: /tls/tls.key}]
          readinessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 2, timeoutSeconds: 5}
          lifecycle: {preStop: {sleep: {seconds: 5}}}
          resources: {requests: {cpu: 10m}}
          volumeMounts: [{name: tls, mountPath: /tls}]
      volumes: [{name: tls, secret: {secretName: guard}}]
---
apiVersion: v1
kind: Service
metadata: {namespace: guard, name: guard}
spec:
  selector: {app: guard}
  ports: [{port: 443, targetPort: 8443}]
`

const guardWebhook = `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: guard}
webhooks:
  - name: guard.example.com
    failurePolicy: Fail
    sideEffects: None
    timeoutSeconds: 10
    admissionReviewVersions: [v1]
    clientConfig: {service: {namespace: guard, name: guard, path: /admit}, caBundle: %s}
    namespaceSelector: {matchExpressions: [{key: kubernetes.io/metadata.name, operator: NotIn, values: [guard]}]}
    rules:
      - {apiGroups: [""], apiVersions: [v1], resources: [pods, services], operations: [CREATE, UPDATE, DELETE]}
`

// standGuard has a webhook asked about pods and Services.
func (n *neighbourhood) standGuard() {
	n.Helper()
	ca, err := pki.NewCA("guard")
	must(n, err)
	pair, err := ca.Issue(pki.Request{CommonName: "guard", Names: []string{"guard.guard.svc"}})
	must(n, err)
	text := base64.StdEncoding.EncodeToString
	n.apply(fmt.Sprintf(guardObjects, text(pair.Cert), text(pair.Key), workload.EchoImage))
	n.kubectl("rollout", "status", "-n", "guard", "deployment/guard", "--timeout=1m")
	n.apply(fmt.Sprintf(guardWebhook, text(ca.Cert)))
	n.await("the webhook to be asked", func() error { return createDry(n.Context(), n.l.Client()) })
}

// createDry creates a pod that is none, which webhooks are asked about all the same.
func createDry(ctx context.Context, client kubernetes.Interface) error {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "dry-", Namespace: shopNamespace},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "dry", Image: workload.EchoImage, ImagePullPolicy: corev1.PullNever}},
		},
	}
	_, err := client.CoreV1().Pods(shopNamespace).Create(ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	return err
}

// patchService writes a label of a Service that stays.
func patchService(ctx context.Context, client kubernetes.Interface, round int) error {
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{"patched":"%d"}}}`, round)
	_, err := client.CoreV1().Services(shopNamespace).Patch(ctx, "balanced", types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// errand is something done over and over until it is called off, and what came of it.
type errand struct {
	what  string
	every time.Duration
	do    func(ctx context.Context, round int) error

	mu     sync.Mutex
	done   int
	failed []string
}

// run does it until ctx ends.
func (e *errand) run(ctx context.Context) {
	tick := time.NewTicker(e.every)
	defer tick.Stop()
	for round := 1; ; round++ {
		began := time.Now()
		err := e.do(ctx, round)
		if ctx.Err() != nil {
			return
		}
		e.mu.Lock()
		e.done++
		if err != nil {
			e.failed = append(
				e.failed,
				fmt.Sprintf("%s after %s: %v", began.Format(time.StampMilli), time.Since(began).Round(time.Millisecond), err),
			)
		}
		e.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// report says what has come of it since it was asked last, and fails the test for each failure.
func (e *errand) report(t *testing.T, during string) {
	t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, f := range e.failed {
		t.Errorf("%s: %s: %s", during, e.what, f)
	}
	t.Logf("%s: %s %d times, %d failed", during, e.what, e.done, len(e.failed))
	e.done, e.failed = 0, nil
}

// errands are what goes on beside requests while Services move.
func (n *neighbourhood) errands() []*errand {
	client := n.l.Client()
	all := []*errand{
		{what: "pods were created dry", every: 200 * time.Millisecond, do: func(ctx context.Context, _ int) error {
			return admitted(createDry(ctx, client))
		}},
		{what: "a Service was patched", every: time.Second, do: func(ctx context.Context, round int) error {
			return admitted(patchService(ctx, client, round))
		}},
		{
			what:  "the APIService was looked at",
			every: 250 * time.Millisecond,
			do:    func(ctx context.Context, _ int) error { return n.available(ctx) },
		},
	}
	if n.has(lab.Flux) {
		all = append(
			all,
			&errand{what: "Flux was looked at", every: time.Second, do: func(ctx context.Context, _ int) error { return n.ready(ctx) }},
		)
	}
	if n.has(lab.ArgoRollouts) {
		all = append(
			all,
			&errand{what: "the Rollout was switched", every: 30 * time.Second, do: func(ctx context.Context, round int) error {
				return admitted(n.tryApply(ctx, n.rollout(int(time.Now().Unix())+round)))
			}},
		)
	}
	return all
}

// admitted passes over what is no answer of an API server: one that restarts may leave a client without.
func admitted(err error) error {
	if apierrors.ReasonForError(err) == metav1.StatusReasonUnknown && err != nil && !strings.Contains(err.Error(), "webhook") {
		return nil
	}
	return err
}
