#!/bin/sh
# Runs API tests of Services with each version of Kubernetes that labs run: those of versions with all, and whole moves with the ones before
# 1.36.
set -eu
lab=$1
export REPLUMB_CALICO_CRDS="$($lab build calico-crds | sed -n 's/^calico-crds\t//p')/crd"

api() { # component, flags of API servers, tests
	echo "== $1 $2: $3"
	KUBEBUILDER_ASSETS=$($lab build "$1" | sed -n "s/^$1\t//p") REPLUMB_TEST_APISERVER_FLAGS=$2 \
		go test -short -count=1 -vet=off -tags apiserver,programs,long -timeout 40m -run "$3" ./internal/migrations/servicecidr
}

versions='^(TestVersionIsTold|TestAddressesAreWrittenTwice)$'
moves='^Test(ManyPortsMove|MoveThereAndFinish|RollbackRestoresTheExactSpecThereAndBack|RollbackReopensARangeThatIsGoing)$'
bitmap='^TestBitmap'
beta='feature-gates=MultiCIDRServiceAllocator=true runtime-config=networking.k8s.io/v1beta1=true'
once='feature-gates=MultiCIDRServiceAllocator=true,DisableAllocatorDualWrite=true runtime-config=networking.k8s.io/v1beta1=true'

api kubernetes '' "$versions"
api kubernetes-v1.33 '' "$versions"
api kubernetes-v1.33 feature-gates=DisableAllocatorDualWrite=true,ComponentFlagz=true "$versions|$moves"
api kubernetes-v1.31 '' "$versions|$bitmap"
api kubernetes-v1.31 "$beta" "$versions"
api kubernetes-v1.31 "$once" "$versions|$moves"
