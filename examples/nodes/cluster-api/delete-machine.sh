#!/bin/sh
# Deletes the Machine of the Node that replumb has emptied, and has its MachineDeployment keep as many as are left. It may be called again.
set -eu
export KUBECONFIG="${MANAGEMENT_KUBECONFIG:-/srv/management.kubeconfig}" # with the namespace of the Machines in its context
machine=$(kubectl get machines -o jsonpath="{.items[?(@.status.nodeRef.name=='$REPLUMB_NODE')].metadata.name}")
[ -n "$machine" ] || exit 0
pool=$(kubectl get machine "$machine" -o jsonpath='{.metadata.labels.cluster\.x-k8s\.io/deployment-name}')
kubectl annotate machine "$machine" cluster.x-k8s.io/delete-machine=yes --overwrite
# Counted, not one less: a second call must not take a second machine.
left=$(kubectl get machines -l cluster.x-k8s.io/deployment-name="$pool" -o go-template='{{range .items}}{{$a := .metadata.annotations}}{{
	if not (and $a (index $a "cluster.x-k8s.io/delete-machine"))}}{{println .metadata.name}}{{end}}{{end}}' | grep -c . || true)
kubectl scale machinedeployment "$pool" --replicas="$left"
kubectl wait machine "$machine" --for=delete --timeout=9m
