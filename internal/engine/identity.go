package engine

// Identity says which cluster something is about, to people and programs.
type Identity struct {
	UID string `json:"uid"`
	// Server is host:port of the API server, as the kubeconfig has it.
	Server string `json:"server"`
	// Context of the kubeconfig; empty if there is none, as in a pod.
	Context string `json:"context,omitempty"`
}

// String names the cluster to people: its context, if there is one, and its server.
func (i Identity) String() string {
	if i.Context == "" {
		return i.Server
	}
	return i.Context + " (" + i.Server + ")"
}

func (i Identity) Environ() []string {
	return []string{"REPLUMB_CLUSTER_UID=" + i.UID, "REPLUMB_SERVER=" + i.Server, "REPLUMB_CONTEXT=" + i.Context}
}
