#!/bin/sh
# Pauses the MachineHealthChecks of the cluster before nodes are emptied, which would replace machines on their own, and afterwards lets those go on
# that it has paused. Others that are paused stay so.
set -eu
export KUBECONFIG="${MANAGEMENT_KUBECONFIG:-/srv/management.kubeconfig}" # with the namespace of the Machines in its context
case $(jq -r .moment) in
Before*) is=none change=cluster.x-k8s.io/paused=replumb ;;
*) is=replumb change=cluster.x-k8s.io/paused- ;;
esac
all=$(kubectl get machinehealthchecks -o json)
names=$(printf '%s' "$all" | jq -r --arg is "$is" '.items[] | select(.spec.clusterName == env.CLUSTER) |
	select((.metadata.annotations["cluster.x-k8s.io/paused"] // "none") == $is) | .metadata.name')
for name in $names; do kubectl annotate machinehealthcheck "$name" "$change"; done
