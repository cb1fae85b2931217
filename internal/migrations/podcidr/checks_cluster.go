package podcidr

import (
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/cluster"
)

func checkRights(in Input) []findings.Result {
	var out []findings.Result
	for _, a := range in.Live.Access {
		if !a.Allowed {
			out = append(out, findings.Failed("", "the user may not %s", a.Right))
		}
	}
	return out
}

func checkDatastore(in Input) []findings.Result {
	if in.Survey.Calico.Ready {
		return nil
	}
	return []findings.Result{findings.Failed("ClusterInformation default", "Calico's datastore is locked (datastoreReady: false)")}
}

func checkNodesReady(in Input) []findings.Result {
	var out []findings.Result
	for i := range in.Survey.Nodes {
		if n := &in.Survey.Nodes[i]; !cluster.NodeReady(n) {
			out = append(out, findings.Failed("Node "+n.Name, "node %s is not ready", n.Name))
		}
	}
	return out
}

// checkOperator looks for what operators list: an old pool is in the way unless the operator itself disables it and makes
// the target.
func checkOperator(in Input) []findings.Result {
	var out []findings.Result
	for _, i := range in.Survey.Installations {
		object := "Installation " + i.Name
		for n := range in.Survey.Moves {
			m := &in.Survey.Moves[n]
			old, has := i.pool(m.From)
			if !has {
				continue
			}
			if _, target := i.pool(m.To); !target {
				out = append(out, findings.Failed(object, "installation %s lists pool %s and not target %s", i.Name, m.From, m.To))
			}
			if !old.DisableNewAllocations {
				out = append(out, findings.Failed(object, "installation %s lists pool %s without disableNewAllocations", i.Name, m.From))
			}
		}
	}
	return out
}
