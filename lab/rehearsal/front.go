package rehearsal

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/testing/apitest"
)

// front is what replumb connects to: it passes requests on to the API server, and plays the nodes that an API server would ask. Nothing else of
// nodes, pods and Services is led to them: what has their addresses may be a cluster that is in use.
type front struct {
	server *httptest.Server
	proxy  *httputil.ReverseProxy
	token  string
	api    *apitest.Server
	// said is what the kubelet of a node says of its configuration; nothing, if that is not known.
	said func(node string) json.RawMessage

	// open is held for writing while the API server restarts.
	open sync.RWMutex

	mu sync.Mutex
	// dns are addresses of cluster DNS as kubelets name them since they were restarted, by those that they named before.
	dns map[string]string
	// ports are the Services that barriers ask nodes about, by their health-check port, and when they were read.
	ports map[int32]client.ObjectKey
	read  time.Time
}

func newFront(s *apitest.Server, said func(node string) json.RawMessage) (*front, error) {
	pair, err := tls.LoadX509KeyPair(s.CertFile, s.KeyFile)
	if err != nil {
		return nil, err
	}
	to, err := url.Parse(s.Config.Host)
	if err != nil {
		return nil, err
	}
	transport, err := rest.TransportFor(s.Config)
	if err != nil {
		return nil, err
	}
	f := &front{api: s, said: said, token: rand.Text()}
	f.proxy = &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(to)
			r.Out.Header.Del("Authorization")
		},
		Transport: transport, FlushInterval: -1, ErrorLog: log.New(io.Discard, "", 0),
		// A connection that ends is what clients know of an API server that restarts.
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	f.server = httptest.NewUnstartedServer(f)
	f.server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	f.server.EnableHTTP2 = true
	f.server.Config.ErrorLog = log.New(io.Discard, "", 0)
	f.server.StartTLS()
	return f, nil
}

func (f *front) close() {
	f.server.CloseClientConnections()
	f.server.Close()
}

// kubeconfig writes one that leads here.
func (f *front) kubeconfig(file string) error {
	c := clientcmdapi.NewConfig()
	const name = "rehearsal"
	c.Clusters[name] = &clientcmdapi.Cluster{Server: f.server.URL, CertificateAuthorityData: f.api.Config.CAData}
	c.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: f.token}
	c.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	c.CurrentContext = name
	return clientcmd.WriteToFile(*c, file)
}

func (f *front) hold()    { f.open.Lock() }
func (f *front) release() { f.open.Unlock() }

func (f *front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Authorization") != "Bearer "+f.token {
		http.Error(w, "it is a rehearsal's alone", http.StatusUnauthorized)
		return
	}
	f.open.RLock()   // watches go on without it
	f.open.RUnlock() //nolint:staticcheck // it is waited for, and not kept
	node, port, path, leads := nodeProxy(r.URL.Path)
	var body []byte
	var err error
	switch {
	case !leads:
		f.proxy.ServeHTTP(w, r)
		return
	case node != "" && path == "configz":
		body, err = f.kubelet(node)
	case node != "" && port > 0:
		body, err = f.kubeProxy(r.Context(), port)
	default:
		err = errors.New("a rehearsal leads to no node, pod or Service")
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(body) // who has gone needs none
}

// nodeProxy reads a path by which an API server leads elsewhere: node and port are empty, if it is not to a node.
func nodeProxy(path string) (node string, port int32, remainder string, leads bool) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	if len(parts) < 4 || parts[0] != "api" || parts[1] != "v1" {
		return "", 0, "", false
	}
	if parts[2] == "nodes" && len(parts) > 4 && parts[4] == "proxy" {
		name, text, _ := strings.Cut(parts[3], ":")
		n, err := strconv.ParseInt(text, 10, 32)
		if err != nil {
			n = 0
		}
		return name, int32(n), strings.Join(parts[5:], "/"), true
	}
	at := 6 // api v1 namespaces NS pods NAME
	if len(parts) <= at || parts[2] != "namespaces" {
		return "", 0, "", false
	}
	switch parts[at] {
	case "proxy", "exec", "attach", "portforward", "log":
		return "", 0, "", parts[4] == "pods" || parts[4] == "services"
	}
	return "", 0, "", false
}

// kubeProxy says of a node that it knows the Service with a health-check port, as one does that has programmed it.
func (f *front) kubeProxy(ctx context.Context, port int32) ([]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, known := f.ports[port]; !known || time.Since(f.read) > 200*time.Millisecond {
		all := &corev1.ServiceList{}
		of := client.MatchingLabels{v1alpha1.LabelRole: v1alpha1.RoleSentinel}
		if err := f.api.List(ctx, all, client.InNamespace(v1alpha1.SystemNamespace), of); err != nil {
			return nil, err
		}
		f.ports, f.read = map[int32]client.ObjectKey{}, time.Now()
		for i := range all.Items {
			f.ports[all.Items[i].Spec.HealthCheckNodePort] = client.ObjectKeyFromObject(&all.Items[i])
		}
	}
	key, known := f.ports[port]
	if !known {
		return nil, fmt.Errorf("no Service has health-check port %d", port)
	}
	return json.Marshal(map[string]any{
		"service": map[string]string{"namespace": key.Namespace, "name": key.Name}, "localEndpoints": 1,
	})
}

// kubelet is its configuration as the snapshot has it, with the addresses of cluster DNS that it got since.
func (f *front) kubelet(node string) ([]byte, error) {
	said := f.said(node)
	if said == nil {
		return nil, fmt.Errorf("the snapshot does not tell what the kubelet of node %s says", node)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return renamed(said, f.dns)
}

// renamed is the configuration of a kubelet with other addresses of cluster DNS.
func renamed(said []byte, to map[string]string) ([]byte, error) {
	if len(to) == 0 {
		return said, nil
	}
	body := map[string]any{}
	if err := utiljson.Unmarshal(said, &body); err != nil {
		return nil, err
	}
	config, _ := body["kubeletconfig"].(map[string]any)
	all, _ := config["clusterDNS"].([]any)
	for i, a := range all {
		if text, is := a.(string); is && to[text] != "" {
			all[i] = to[text]
		}
	}
	return json.Marshal(body)
}

// repoint has all kubelets name the present addresses of those Services at whose addresses they named cluster DNS.
func (f *front) repoint(ctx context.Context, was map[string]client.ObjectKey) error {
	now := map[string]string{}
	for address, key := range was {
		svc := &corev1.Service{}
		if err := f.api.Get(ctx, key, svc); err != nil {
			return err
		}
		for _, ip := range svc.Spec.ClusterIPs {
			if strings.Contains(ip, ":") == strings.Contains(address, ":") {
				now[address] = ip
			}
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dns = now
	return nil
}
