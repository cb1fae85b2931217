#!/usr/bin/env bash
# Runs tests of the module test by name: hack/e2e.sh NAME..., or all; without a name it lists them. CONTRIBUTING.md says what each of them is.
set -euo pipefail
cd "$(dirname "$0")/.."
lab=$PWD/bin/replumb-lab

# name, the lab's components that it needs, and what go test is given. "all" leaves out move, a part of lab. soak is a program: LENGTH is how
# long it runs (1h), SEED what a run printed, and with KEEP=1 the lab of one that fails stays.
tests() {
	cat <<'END'
move        plain                ./e2e -short -run ^TestTwoNodes$/^KilledAndFinished$
lab         plain                ./e2e -short -run ^(TestTwoNodes|TestUpKilled)$
demo        plain                ./e2e -run ^TestDemo$
calico      basic                ./e2e -short -run ^TestCalico$
edge        every                ./e2e -run ^(TestUp.*|TestTwoLabs|TestCalicoLab|TestNodesJoinAndLeave|TestEdge|TestNeighbours|TestRegistryAndCertificates)$
proof       basic                ./e2e -run ^(TestProof|TestProofLong)$
outside     basic                ./e2e -run ^TestOutside$
nodeports   basic                ./e2e -run ^TestNodePorts$
planes      basic                ./e2e -run ^(TestPlanes|TestPartition)$
overlap     basic                ./e2e -run ^(TestOverlap|TestOneOwner)$
rehearsal   basic                ./e2e -run ^TestRehearsal$
neighbours  basic,traefik,metallb,metrics-server,argo-rollouts,source-controller,kustomize-controller,registry ./e2e -run ^TestNeighbours(Work|LoseNothing|Stored)$
many        plain                ./e2e -run ^TestManyServices$
stored      basic                ./e2e -run ^(TestStored|TestNodePortsStored)$
operator    basic                ./e2e -run ^TestOperator$
fleet       basic                ./e2e -run ^TestFleet$
together    basic                ./e2e -run ^TestTogether$
gitops      basic                ./e2e -run ^TestHelmAndFlux$
released    basic                ./e2e -run ^TestReleased$
conformance basic,e2e            ./e2e -run ^TestConformance$
restarts    basic                ./e2e -run ^TestRestarts$
pods        basic                ./e2e -run ^(TestPodCIDR|TestTunnels|TestNodesCarryRanges|TestPodsWatched|TestNodesWatched)$
cni         basic,cilium,flannel ./e2e -timeout 200m -run ^TestInPlace
cilium      basic,cilium         ./e2e -run ^Test(CiliumLab|PastCilium)$
cilium-pods basic,cilium         ./e2e -timeout 240m -run ^TestCilium(Pods|Watched|Returns)$
own         basic,cilium         ./e2e -run ^(TestOwnAddresses|TestOwnAddressesByAPI|TestCiliumServices)$
cilium-then basic,cilium,flannel ./e2e -run ^TestCiliumThenServices$
cilium-flux basic,cilium,source-controller,kustomize-controller,registry ./e2e -run ^TestFluxBehindCilium$
kubeadm     basic,kubeadm,cilium,flannel,registry,certmanager ./e2e -timeout 240m -run ^TestKubeadm
cluster-api basic,kubeadm,cluster-api,cluster-api-bootstrap,cluster-api-control-plane ./e2e -timeout 180m -run ^TestClusterAPI
kube-proxy  plain                ./e2e -run ^TestProxy(Mode|Program)$
nodes       basic                ./e2e -run ^TestNode(sMove|sReplace|Removal)$
mirror      basic,flannel,registry,certmanager ./e2e -run ^TestMirror$
families    basic                ./e2e -run ^TestFamilies
whole       basic                ./e2e -run ^TestWholeRange$
versions    basic,kubernetes-v1.33,kubernetes-v1.31 ./e2e -timeout 100m -run ^TestVersions$
matrix      basic                ./e2e -run ^TestMatrix
endurance   plain                ./endurance/...
kill        api                  ./kill -tags long -parallel 3 -timeout 120m
hostile     api                  ./hostile -tags long -timeout 20m
rights      api                  ./rights -short -timeout 40m
soak        basic
END
}

# components are those that a word of the table stands for; none is all there are.
components() {
	local plain=(kubernetes containerd coredns cni)
	for each in ${1//,/ }; do
		case $each in
		api) echo kubernetes calico-crds ;;
		plain) echo "${plain[@]}" ;;
		basic) echo "${plain[@]}" calico ;;
		every) ;;
		*) echo "$each" ;;
		esac
	done
}

# prepare has what a test needs beside components.
prepare() {
	case $1 in
	cilium | cilium-* | cni | kubeadm | own) hack/deps.sh clang-19 ;; # with which Cilium's agents compile
	conformance) hack/deps.sh busybox nc.openbsd wget ;;
	released) make --no-print-directory release-snapshot ;;
	versions) hack/test-versions.sh "$lab" ;;
	esac
}

run() {
	local row name needs args
	row=$(tests | grep "^$1 ") || { echo "error: there is no test $1; hack/e2e.sh lists them" >&2; exit 1; }
	read -r name needs args <<<"$row"
	"$lab" build $(components "$needs") >/dev/null
	prepare "$name"
	if [ "$name" = soak ]; then
		go -C test build -o ../bin/soak ./soak
		bin/soak -bin bin -length "${LENGTH:-1h}" ${SEED:+-seed "$SEED"} ${KEEP:+-keep}
	elif [ "$needs" = api ]; then
		hack/gotest.sh test -count=1 $args
	else
		go -C test test -v -count=1 -timeout 60m $args
	fi
}

set -f # patterns of tests are none of files
[ $# -gt 0 ] || { tests | sed 's/ .*//'; exit; }
[ "$*" != all ] || set -- $(tests | sed 's/ .*//' | grep -v '^move$')
for name in "$@"; do run "$name"; done
