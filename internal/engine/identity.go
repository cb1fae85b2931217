package engine

// Identity says which cluster something is about, to people and programs.
type Identity struct {
	UID     string `json:"uid"`
	Server  string `json:"server"`
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
