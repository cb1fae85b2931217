package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"log/slog"
	"strconv"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	networkinglisters "k8s.io/client-go/listers/networking/v1"
	"k8s.io/client-go/tools/cache"
)

// classAnnotation is how Ingresses named their class before they had a field for it.
const classAnnotation = "kubernetes.io/ingress.class"

// againAfter is how long after a write that failed it is tried again.
const againAfter = time.Second

// controller follows the Ingresses of a class, the Secrets with certificates, and the Services.
type controller struct {
	client         kubernetes.Interface
	class, address string

	factories []informers.SharedInformerFactory
	ingresses networkinglisters.IngressLister
	services  corelisters.ServiceLister
	secrets   corelisters.SecretLister
	synced    []cache.InformerSynced

	// changed holds at most one word that something is new.
	changed chan struct{}
	table   atomic.Pointer[table]
}

// newController follows what client shows. Ingresses of the class are told to be found at address, unless that is empty.
func newController(client kubernetes.Interface, class, address string) (*controller, error) {
	all := informers.NewSharedInformerFactory(client, 0)
	certificates := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("type", string(corev1.SecretTypeTLS)).String()
	}))
	c := &controller{
		client: client, class: class, address: address, changed: make(chan struct{}, 1),
		factories: []informers.SharedInformerFactory{all, certificates},
		ingresses: all.Networking().V1().Ingresses().Lister(),
		services:  all.Core().V1().Services().Lister(),
		secrets:   certificates.Core().V1().Secrets().Lister(),
	}
	c.table.Store(newTable(nil, nil))
	heard := cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { c.signal() }, UpdateFunc: func(any, any) { c.signal() }, DeleteFunc: func(any) { c.signal() },
	}
	for _, informer := range []cache.SharedIndexInformer{
		all.Networking().V1().Ingresses().Informer(), certificates.Core().V1().Secrets().Informer(),
	} {
		handled, err := informer.AddEventHandler(heard)
		if err != nil {
			return nil, fmt.Errorf("follow: %w", err)
		}
		c.synced = append(c.synced, handled.HasSynced)
	}
	c.synced = append(c.synced, all.Core().V1().Services().Informer().HasSynced)
	return c, nil
}

func (c *controller) signal() {
	select {
	case c.changed <- struct{}{}:
	default: // it has been said, and not been read yet
	}
}

// run keeps the table, and the status of Ingresses, until ctx ends. It calls ready when there is a first table.
func (c *controller) run(ctx context.Context, ready func()) {
	for _, f := range c.factories {
		f.Start(ctx.Done())
	}
	if !cache.WaitForCacheSync(ctx.Done(), c.synced...) {
		return
	}
	c.refresh(ctx)
	ready()
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.changed:
			c.refresh(ctx)
		}
	}
}

// refresh rebuilds the table and tells Ingresses where they are found.
func (c *controller) refresh(ctx context.Context) {
	all, err := c.ingresses.List(labels.Everything())
	if err != nil {
		slog.ErrorContext(ctx, "list Ingresses", "error", err)
		return
	}
	var own []*networkingv1.Ingress
	for _, i := range all {
		if c.owns(i) {
			own = append(own, i)
		}
	}
	c.table.Store(newTable(own, c.certificate))
	for _, i := range own {
		if err := c.tellAddress(ctx, i); err != nil {
			slog.ErrorContext(ctx, "write the status of an Ingress", "ingress", i.Namespace+"/"+i.Name, "error", err)
			time.AfterFunc(againAfter, c.signal)
		}
	}
}

func (c *controller) owns(i *networkingv1.Ingress) bool {
	if i.Spec.IngressClassName != nil {
		return *i.Spec.IngressClassName == c.class
	}
	return i.Annotations[classAnnotation] == c.class
}

// certificate is what a Secret holds; nil, if there is none or it is none.
func (c *controller) certificate(namespace, name string) *tls.Certificate {
	secret, err := c.secrets.Secrets(namespace).Get(name)
	if err != nil {
		return nil // it comes later, or never: its hosts are not served over TLS until then
	}
	pair, err := tls.X509KeyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
	if err != nil {
		slog.Error("read a certificate", "secret", namespace+"/"+name, "error", err)
		return nil
	}
	return &pair
}

// tellAddress writes where an Ingress is found, unless it says so.
func (c *controller) tellAddress(ctx context.Context, i *networkingv1.Ingress) error {
	has := i.Status.LoadBalancer.Ingress
	if c.address == "" || (len(has) == 1 && has[0].IP == c.address) {
		return nil
	}
	status := networkingv1.IngressStatus{LoadBalancer: networkingv1.IngressLoadBalancerStatus{
		Ingress: []networkingv1.IngressLoadBalancerIngress{{IP: c.address}},
	}}
	patch, err := json.Marshal(map[string]any{"status": status})
	if err != nil {
		return err
	}
	_, err = c.client.NetworkingV1().Ingresses(i.Namespace).
		Patch(ctx, i.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}

// find is where a backend's Service is reached: by its name in cluster DNS, at the number of the port.
func (c *controller) find(b backend) (string, error) {
	port := b.port.Number
	if b.port.Name != "" {
		service, err := c.services.Services(b.namespace).Get(b.service)
		if err != nil {
			return "", err
		}
		for _, p := range service.Spec.Ports {
			if p.Name == b.port.Name {
				port = p.Port
			}
		}
	}
	if port == 0 {
		return "", fmt.Errorf("service %s/%s has no port %q", b.namespace, b.service, b.port.Name)
	}
	return serviceHost(b.namespace, b.service, strconv.Itoa(int(port))), nil
}
