package lab

// A Lab is what there is; its parts are what can be done with it, each with the machines and programs it is about.
type (
	// machines starts the lab's machines and what runs on them.
	machines struct{ *Lab }
	// ControlPlaneNodes has etcd, API servers, controller managers and schedulers: it starts, changes and ends them.
	ControlPlaneNodes struct{ *Lab }
	// Workers has kubelets, kube-proxies and containerd: it starts, changes and ends them.
	Workers struct{ *Lab }
	// Addons is what runs in the cluster or beside it for its workloads: the network of pods, DNS, an ingress, an image registry, certificates.
	Addons struct{ *Lab }
	// Balancers lead clients to API servers and to the ingress.
	Balancers struct{ *Lab }
	// edging is what is in front of the cluster: names, balancers, and a machine outside.
	edging struct{ *Lab }
	// images are what nodes are given to run.
	images struct{ *Lab }
	// ClusterAPI has machines made, and the cluster of them, by the controllers of that name in a lab of their own.
	ClusterAPI struct{ *Lab }
	// Fabrics joins machines in networks, and labs with each other.
	Fabrics struct{ *Lab }
)

func (l *Lab) machines() machines { return machines{l} }
func (l *Lab) edging() edging     { return edging{l} }
func (l *Lab) images() images     { return images{l} }

// ControlPlaneNodes are the machines of the control plane.
func (l *Lab) ControlPlaneNodes() ControlPlaneNodes { return ControlPlaneNodes{l} }

// Workers are the nodes that run pods.
func (l *Lab) Workers() Workers { return Workers{l} }

// Addons is what the cluster's workloads rely on.
func (l *Lab) Addons() Addons { return Addons{l} }

// Balancers are those of the lab's Edge.
func (l *Lab) Balancers() Balancers { return Balancers{l} }

// ClusterAPI is what makes the machines of a lab of that installer.
func (l *Lab) ClusterAPI() ClusterAPI { return ClusterAPI{l} }

// Fabrics is what machines are plugged into.
func (l *Lab) Fabrics() Fabrics { return Fabrics{l} }
