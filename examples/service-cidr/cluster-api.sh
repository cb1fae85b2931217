#!/bin/sh
# Changes the KubeadmControlPlane as a gate of Services wants it, and waits until it has replaced the machines. What else it says stays.
set -eu
export KUBECONFIG="${MANAGEMENT_KUBECONFIG:-/srv/management.kubeconfig}" # with the namespace of the cluster in its context
plane=kubeadmcontrolplane/$CONTROL_PLANE
case $REPLUMB_ACTION in
certificates) change='.apiServer.certSANs |= ((. // []) + [env.REPLUMB_WANT, env.REPLUMB_KEEP] | unique)' ;;
apiServers) change='(.apiServer, .controllerManager).extraArgs |= ((. // []) | map(select(.name != $flag)) + [{name: $flag, value: env.REPLUMB_WANT}])' ;;
*) echo "gate $REPLUMB_ACTION is not for a KubeadmControlPlane" >&2 && exit 1 ;;
esac

# The agents of replumb leave machines that end; those of other nodes call them otherwise.
umask 077
workload=$(mktemp)
agents() { kubectl --kubeconfig "$workload" label node -l node-role.kubernetes.io/control-plane --overwrite "replumb.dev.node-restriction.kubernetes.io/agents$1"; }
trap 'agents - || true; rm -f "$workload"' EXIT
trap 'exit 1' HUP INT TERM # or the file with access to the cluster would stay
cluster=$(kubectl get "$plane" -o jsonpath='{.metadata.labels.cluster\.x-k8s\.io/cluster-name}')
kubectl get secret "$cluster-kubeconfig" -o jsonpath='{.data.value}' | base64 -d >"$workload"
agents =none

kubectl get "$plane" -o json |
	jq --arg flag service-cluster-ip-range ".spec.kubeadmConfigSpec.clusterConfiguration | $change | {spec: {kubeadmConfigSpec: {clusterConfiguration: .}}}" |
	kubectl patch "$plane" --type merge --patch-file /dev/stdin
kubectl wait "$plane" --for=jsonpath='{.status.observedGeneration}'="$(kubectl get "$plane" -o jsonpath='{.metadata.generation}')" --timeout=5m
kubectl wait "$plane" --for=condition=RollingOut=False --timeout=50m
kubectl wait "$plane" --for=condition=Available --timeout=5m
