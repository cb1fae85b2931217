# replumb. `make` alone lists the targets.
SHELL       := /bin/bash -o pipefail
BIN         := $(CURDIR)/bin
LAB         := $(BIN)/replumb-lab
IMAGE       ?= ghcr.io/replumb/replumb:$(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
TOOL        := go tool -modfile=$(CURDIR)/hack/tools/go.mod
LDFLAGS     := -s -w -X github.com/replumb/replumb/internal/cli.version=$(shell git describe --tags --always --dirty 2>/dev/null || echo dev) $(if $(DIGEST),-X github.com/replumb/replumb/internal/cli.digest=$(DIGEST))
# The authorities that the image trusts.
ROOTS       ?= $(wildcard /etc/ssl/certs/ca-certificates.crt)
# What the image is for: make image ARCHES="amd64 arm64" writes an OCI layout, build/replumb-image, and prints its digest; make build DIGEST=sha256:… has
# the released binary run just that.
ARCHES      ?=
LINT        := $(BIN)/golangci-lint
GOTESTSUM   := $(BIN)/gotestsum
VALE        := $(BIN)/vale
# API servers that packages share instead of each booting one. They live briefly and need not be thrifty with memory.
POOL        := GOGC=400 $(BIN)/apipool -plain 4 -full 2 --
FEW         := GOGC=400 $(BIN)/apipool -plain 3 -full 2 --
# The product, the lab and the tests of both are modules of their own, so that the product depends on nothing of the others.
MODULES     := . lab test hack/helm
# What tests need beside Go: an API server, programs that hack/deps.sh installs, root, or a long time. All code is compiled for the checks.
TAGS        := apiserver,programs,root,long
# What tests against an API server need: etcd, the API server and its controllers, and Calico's definitions.
ASSETS       = KUBEBUILDER_ASSETS=$$($(LAB) build kubernetes | sed -n 's/^kubernetes\t//p') REPLUMB_CALICO_CRDS=$$($(LAB) build calico-crds | sed -n 's/^calico-crds\t//p')/crd
export GOWORK := off
# Tests, vet, binaries and the lab's components are compiled alike, so that what they share, which takes minutes, is compiled once. lab/component has the
# same flags. Nothing is linked with symbols for debuggers: GOFLAGS=-gcflags=all=-dwarf=true has them.
export GOFLAGS := -trimpath -gcflags=all=-dwarf=false $(shell go env GOFLAGS)
export CGO_ENABLED := 0
# Compilers live briefly and need not be thrifty with memory.
check: export GOGC := 400
build: export GOGC := off
build: export GOMEMLIMIT := 1GiB

.DEFAULT_GOAL := help

##@ Use

# What make demo builds first; its modules arrive while replumb is compiled.
DEMO         := kubernetes containerd coredns cni

.PHONY: demo
demo: demo-outline demo-deps demo-modules build ## Watch a real cluster's Service range move under traffic, beside the naive way (root; about 2 min, and 5 more the first time)
	$(LAB) demo --replumb $(BIN)/replumb --result build/demo/result.json

.PHONY: demo-outline
demo-outline:
	@echo "1. Debian packages, replumb and the programs of a cluster - Kubernetes, containerd, CoreDNS, CNI plugins - unless they are there:"
	@echo "   downloaded and built, about 5 min on two processors"
	@echo "2. A cluster of 2 nodes, its Service range moved under traffic, and taken down: about 2 min"

.PHONY: demo-deps
demo-deps:
	@hack/deps.sh --lab

.PHONY: demo-modules
demo-modules:
	@hack/modules.sh $(DEMO) > /dev/null 2>&1 & # building says what cannot be downloaded

.PHONY: build
build: ## Build bin/replumb, bin/kubectl-replumb and bin/replumb-lab
	@mkdir -p $(BIN)
	go build -ldflags "$(LDFLAGS)" -o $(BIN)/ ./cmd/...
	@go -C lab run ./cmd/sources
	go -C lab build -tags carried -ldflags "-s -w" -o $(BIN)/ ./cmd/replumb-lab
	@ln -sf replumb $(BIN)/kubectl-replumb
	@cp hack/completion/kubectl_complete-replumb $(BIN)/

.PHONY: image
image: build ## Write build/replumb-image.tar, for canaries: load it into a registry (crane push) or into nodes (ctr -n k8s.io images import)
	@mkdir -p build
ifeq ($(ARCHES),)
	@go -C lab run ./cmd/image -binary $(BIN)/replumb -roots "$(ROOTS)" -ref $(IMAGE) -o $(CURDIR)/build/replumb-image.tar
else
	@for arch in $(ARCHES); do GOARCH=$$arch go build -ldflags "$(LDFLAGS)" -o build/replumb-$$arch ./cmd/replumb || exit; done
	@go -C lab run ./cmd/image -binary "$$(printf ',%s' $(foreach arch,$(ARCHES),$(arch)=$(CURDIR)/build/replumb-$(arch)) | cut -c2-)" \
		-roots "$(ROOTS)" -ref $(IMAGE) -o $(CURDIR)/build/replumb-image
endif

.PHONY: lab-api
lab-api: deps build ## Build the components that API servers without nodes need: Kubernetes, and Calico's definitions
	@$(LAB) build kubernetes calico-crds > /dev/null

.PHONY: lab-plain
lab-plain: deps build ## Build the components of labs without Calico: Kubernetes, containerd, CoreDNS, CNI
	@$(LAB) build kubernetes containerd coredns cni > /dev/null

.PHONY: lab-basic
lab-basic: lab-plain ## Build the components that most labs run: those, and Calico
	@$(LAB) build calico > /dev/null

.PHONY: lab-neighbours
lab-neighbours: lab-basic ## Build what labs have of software that watches Services as well: Traefik, MetalLB, metrics-server, Argo Rollouts, Flux, an image registry
	@$(LAB) build traefik metallb metrics-server argo-rollouts source-controller kustomize-controller registry > /dev/null

.PHONY: lab-cilium
lab-cilium: lab-basic ## Build Cilium for labs as well, and install clang, with which its agents compile (root)
	@hack/deps.sh clang-19
	@$(LAB) build cilium > /dev/null

.PHONY: lab
lab: deps build ## Build all components of labs: those, flannel, cert-manager (about 45 min the first time, then cached)
	@$(LAB) build > /dev/null

##@ Check

.PHONY: check
check: $(GOTESTSUM) ## Vet, and all tests that need nothing but Go: no root, no components (about a minute)
	@for module in $(MODULES); do echo "go vet ($$module)"; go -C $$module vet -tags $(TAGS) ./... || exit; done
	@hack/gotest.sh . -vet=off -timeout 5m ./...
	@hack/gotest.sh lab -vet=off -timeout 5m ./...
	@hack/gotest.sh test -short -vet=off -timeout 5m ./soak/... ./conformance ./argocd # the model and the audit of the one, how the other compares, the script of the third
	@hack/gotest.sh hack/helm -vet=off -timeout 5m ./... # the chart

.PHONY: test
test: check test-api-short test-once test-root lab-plain ## check, and of each kind of migration: its promises on a real API server, a process that is killed, an attack; and real packets, for Services (root)
	@$(MAKE) --no-print-directory test-move # by itself: what measures losses needs the processors

.PHONY: test-api
test-api: lab-api apipool $(GOTESTSUM) ## Tests against a real etcd and API server, and beside programs of Debian
	@$(ASSETS) $(POOL) hack/apitests.sh long
	@$(ASSETS) hack/gotest.sh lab -short -tags apiserver,programs,long -timeout 10m ./...
	@$(ASSETS) hack/gotest.sh test -short -tags apiserver,programs,long -timeout 10m ./soak ./browser

.PHONY: test-api-short
test-api-short: lab-api apipool $(GOTESTSUM) ## What test-api has without the tag long: each promise of each kind of migration once
	@$(ASSETS) $(FEW) hack/apitests.sh

.PHONY: test-once
test-once: lab-api $(GOTESTSUM) ## What test-crash and test-hostile have without the tag long: a command of each kind killed once, and an attack on it
	@$(ASSETS) hack/gotest.sh test -count=1 -parallel 3 -timeout 10m ./kill ./hostile

.PHONY: test-crash
test-crash: lab-api $(GOTESTSUM) ## The process killed with SIGKILL where every command of every kind is far from done, on API servers without nodes
	@$(ASSETS) hack/gotest.sh test -short -count=1 -tags long -parallel 3 -timeout 30m ./kill

.PHONY: test-hostile
test-hostile: lab-api $(GOTESTSUM) ## A tenant, a node and others who may write what replumb reads attack migrations, on an API server without nodes
	@$(ASSETS) hack/gotest.sh test -count=1 -tags long -timeout 20m ./hostile

.PHONY: test-rights
test-rights: lab-api $(GOTESTSUM) ## Whole migrations with the roles and nothing else, held against the API server's audit log
	@$(ASSETS) hack/gotest.sh test -short -count=1 -timeout 40m ./rights

.PHONY: test-kill
test-kill: lab-api $(GOTESTSUM) ## The process killed with SIGKILL at every event of a full run, on API servers without nodes (about 40 min)
	@$(ASSETS) hack/gotest.sh test -count=1 -tags long -parallel 3 -timeout 80m ./kill

.PHONY: test-race
test-race: lab-api apipool $(GOTESTSUM) ## All tests of test-api, looking for races
	@$(ASSETS) CGO_ENABLED=1 $(POOL) hack/gotest.sh . -race -tags apiserver,programs,long -p 3 -timeout 60m ./...

.PHONY: test-long
test-long: check test-root test-api test-race test-crash test-hostile test-rights test-kill test-lab test-demo test-calico test-edge test-proof test-outside test-nodeports test-planes test-overlap test-neighbours test-stored test-restarts test-rehearsal test-conformance test-operator test-fleet test-together test-gitops test-released packets-pods test-cilium packets-cni packets-nodes packets-mirror test-whole test-families test-versions test-matrix test-lab-endurance ## All tests, one after the other (root; many hours)

# All tests of one kind of migration, for a change of it: those of its packages and commands, of processes killed at every command, of attacks
# and of roles, and then those with packets. What several kinds stand on (internal/kube, internal/safety, internal/verify and others) is in
# check and test-api. Arguments: packages, tests of internal/cli, of test/kill, of test/hostile, of test/rights; none is written none.
define whole
	@$(ASSETS) $(POOL) hack/gotest.sh . -short -vet=off -tags $(TAGS) -timeout 60m $(1)
	@$(ASSETS) $(POOL) hack/gotest.sh . -short -vet=off -tags $(TAGS) -timeout 60m -run '^($(2))$$' ./internal/cli
	@[ '$(3)' = none ] || $(ASSETS) hack/gotest.sh test -short -count=1 -tags long -parallel 3 -timeout 30m -run '^($(3))$$' ./kill
	@$(ASSETS) hack/gotest.sh test -count=1 -tags long -timeout 20m -run '^($(4))$$' ./hostile
	@$(ASSETS) hack/gotest.sh test -short -count=1 -timeout 40m -run '^($(5))$$' ./rights
endef

.PHONY: test-services
test-services: lab-api apipool $(GOTESTSUM) ## All tests of moves of Services (root; hours)
	$(call whole,./internal/migrations/servicecidr/... ./internal/kube/stored ./internal/network/bridge/... ./internal/operator/...,Test(Cluster|Operator|Fleet|Ranges|Together)(Long)?,TestKillAnywhere,Test.*,TestServices)
	@$(MAKE) --no-print-directory test-lab test-calico test-proof test-outside test-nodeports test-planes test-overlap test-rehearsal test-neighbours test-stored test-restarts test-operator test-fleet test-together test-gitops test-released test-conformance test-whole test-families test-versions test-matrix

.PHONY: test-pods
test-pods: lab-api apipool $(GOTESTSUM) ## All tests of moves of pods (root; about 90 min)
	$(call whole,./internal/migrations/podcidr/... ./internal/network/calico/... ./internal/network/nodeipam/... ./internal/network/tunneladdr/...,Test(Pods|Together)(Long)?,TestKillPodsAnywhere,Test(Agent|Speaks|Kubelet|Loop|Echo).*,Test(Pods|NodeRanges))
	@$(MAKE) --no-print-directory test-calico packets-pods test-together

.PHONY: test-nodes
test-nodes: lab-api apipool $(GOTESTSUM) ## All tests of moves of nodes and control planes (root; about 45 min)
	$(call whole,./internal/migrations/nodes/... ./internal/kube/etcd/... ./internal/kube/controlplane/... ./internal/kube/rollout/... ./internal/kube/leaving/...,TestNodes(Long)?,Test(Kill(Nodes|TwoEtcds|ExternalEtcd|Replace).*|NaiveEtcd),Test(FilesFromTheCluster|KubeletTakesItsNodeOutOfTheProof),TestNodes)
	@$(MAKE) --no-print-directory packets-nodes

.PHONY: test-cni
test-cni: lab-api apipool $(GOTESTSUM) ## All tests of networks replaced in place (root; about 3 h)
	$(call whole,./internal/migrations/cni/... ./internal/network/masquerade/... ./internal/network/nodecleanup/... ./internal/network/podnetwork/...,TestNetworks,none,TestNetworkNamedAfterARoot,TestCNI)
	@$(MAKE) --no-print-directory test-cilium packets-cni

.PHONY: test-mirror
test-mirror: lab-api apipool $(GOTESTSUM) ## All tests of mirrors (root; about 30 min)
	$(call whole,./internal/migrations/mirror/... ./internal/kube/objectsync/... ./internal/network/dnscutover/... ./internal/network/dnsrecords/...,TestMirror,TestKillMirrorAnywhere,Test(KubeconfigFromASecret|SwappedTarget|StatusOfAMirrorOpensNothing),TestMirror)
	@$(MAKE) --no-print-directory packets-mirror

.PHONY: test-root
test-root: $(GOTESTSUM) ## Tests of the machine's own network, each in a network namespace of its own (root)
	@hack/gotest.sh . -tags root -timeout 10m ./internal/network/masquerade ./internal/network/nodecleanup ./internal/network/tunneladdr ./internal/verify/conntrack
	@hack/gotest.sh lab -tags root -timeout 10m ./lab ./cgroup

# Each test with real packets runs in one of these targets; test-lab has the shortest that shows what all others stand on, with its control.
E2E          = go -C test test -v -count=1 -timeout 60m

.PHONY: test-move
test-move: lab-plain ## Services moved under traffic while replumb is killed, and finished, beside one that is deleted and recreated (root; about 2 min)
	$(E2E) -short -run '^TestTwoNodes$$/^KilledAndFinished$$' ./e2e

.PHONY: test-lab
test-lab: lab-plain ## Tests with real packets between real nodes (root; about 6 min)
	$(E2E) -short -run '^(TestTwoNodes|TestUpKilled)$$' ./e2e

.PHONY: test-demo
test-demo: lab-plain ## The demo with a node that leads to pods which have ended, and with clients that are stopped: it tells the one from the other (root; about 4 min)
	$(E2E) -run '^TestDemo$$' ./e2e

.PHONY: test-calico
test-calico: lab-basic ## All pods and then all Services of a cluster with Calico and three control planes moved under traffic, killed on the way (root; about 12 min)
	$(E2E) -short -run '^TestCalico$$' ./e2e

.PHONY: test-edge
test-edge: lab ## Tests of the lab itself: killed, doubled, with load balancers, neighbours, a registry, certificates, nodes that join (root; about 12 min)
	$(E2E) -run '^(TestUp.*|TestTwoLabs|TestCalicoLab|TestNodesJoinAndLeave|TestEdge|TestNeighbours|TestRegistryAndCertificates)$$' ./e2e

.PHONY: test-proof
test-proof: lab-basic ## Agents that stop a move in time, and at length: what holds up a barrier, who uses old addresses, rollback on loss; they do not come up, stand still, are killed, lose their rights; nodes join, and are not ready (root; about 25 min)
	$(E2E) -run '^(TestProof|TestProofLong)$$' ./e2e

.PHONY: test-outside
test-outside: lab-basic ## Pods that kube-proxy takes for clients from outside: check names them, and agents stop the move (root; about 3 min)
	$(E2E) -run '^TestOutside$$' ./e2e

.PHONY: test-nodeports
test-nodeports: lab-basic ## Node ports at 500 connections a second while their Services move, on a quiet and on a busy cluster (root; about 6 min)
	$(E2E) -run '^TestNodePorts$$' ./e2e

.PHONY: test-planes
test-planes: lab-basic ## Three control planes, of which one is killed, without etcd, or cut off while everything moves (root; about 18 min)
	$(E2E) -run '^(TestPlanes|TestPartition)$$' ./e2e

.PHONY: test-overlap
test-overlap: lab-basic ## Between commands: API servers restarted and killed one by one, endpoints switched, a replica lost; without replicas, and without any migration; session affinity (root; about 10 min)
	$(E2E) -run '^(TestOverlap|TestOneOwner)$$' ./e2e

.PHONY: test-rehearsal
test-rehearsal: lab-basic ## A cluster's Services moved from its snapshot alone: on an API server without nodes, and a sample of them with packets (root; about 8 min)
	$(E2E) -run '^TestRehearsal$$' ./e2e

.PHONY: test-neighbours
test-neighbours: lab-neighbours ## Beside Traefik, MetalLB, metrics-server, Argo Rollouts, Flux and a webhook, which do what they are there for: all Services moved and moved back, by hops and in etcd (root; about 19 min, and 15 more the first time)
	$(E2E) -run '^TestNeighbours(Work|LoseNothing|Stored)$$' ./e2e

.PHONY: test-stored
test-stored: lab-basic ## Services that no hop can move, with MetalLB's address, node ports, addresses outside and local endpoints, moved in etcd: there, back, there again, finish; 30 node ports under 500 connections a second (root; about 12 min, and 3 more the first time)
	$(E2E) -run '^(TestStored|TestNodePortsStored)$$' ./e2e

.PHONY: test-operator
test-operator: lab-basic ## Fifty Services moved by replumb install and kubectl alone, while the operator is killed, drained and cut off (root; about 20 min)
	$(E2E) -run '^TestOperator$$' ./e2e

.PHONY: test-fleet
test-fleet: lab-basic ## Two clusters of a fleet, in waves: a loss in the first halts it, and after repair both move and finish (root; about 5 min)
	$(E2E) -run '^TestFleet$$' ./e2e

.PHONY: test-together
test-together: lab-basic ## Services and pods of one cluster as one set: a loss stops it, killed in both halves it goes on, there and back and for good (root; about 20 min)
	$(E2E) -run '^TestTogether$$' ./e2e

.PHONY: test-gitops
test-gitops: lab-basic ## The chart by Helm, and a repository of artifacts by Flux: each installs replumb and moves Services (root; about 10 min, and as long for components the first time)
	$(E2E) -run '^TestHelmAndFlux$$' ./e2e

.PHONY: test-released
test-released: release-snapshot lab-basic ## What a release has, from a registry that asks for credentials: its command and its chart move Services (root; about 10 min, and 20 more the first time)
	$(E2E) -run '^TestReleased$$' ./e2e

.PHONY: test-conformance
test-conformance: lab-basic ## Kubernetes' own tests of the network before a move, between apply and finish, and afterwards; what became of each is in build/conformance (root; about 16 min, and 6 more the first time)
	@hack/deps.sh busybox nc.openbsd wget
	@$(LAB) build e2e > /dev/null
	$(E2E) -run '^TestConformance$$' ./e2e

.PHONY: test-restarts
test-restarts: lab-basic ## Restarts of cluster DNS, and of what else takes datagrams, under a thousand look-ups a second, each asked once (root; about 6 min)
	$(E2E) -run '^TestRestarts$$' ./e2e

.PHONY: packets-pods
packets-pods: lab-basic ## Tests of pods at length: moved to another range, back, and there for good, by pools and by Nodes, with and without agents (root; about 30 min)
	$(E2E) -run '^(TestPodCIDR|TestTunnels|TestNodesCarryRanges|TestPodsWatched|TestNodesWatched)$$' ./e2e

.PHONY: packets-cni
packets-cni: lab-cilium ## Networks replaced in place, node by node, under traffic, there, back and there for good: flannel, Calico and host-local, by each other and by Cilium; kube-proxy by Cilium (root; about 150 min, and 15 more the first time)
	@$(LAB) build flannel > /dev/null
	$(E2E) -timeout 200m -run '^TestInPlace' ./e2e

.PHONY: test-cilium
test-cilium: lab-cilium ## A lab with Cilium, beside kube-proxy and in its place: pods, Services, node ports, NetworkPolicies, agents replaced, and why Services do not move beside it (root; about 15 min, and 15 more the first time)
	$(E2E) -run '^Test(CiliumLab|PastCilium)$$' ./e2e

.PHONY: packets-nodes
packets-nodes: lab-basic ## Nodes and control planes moved to another network, by others that join and with their data, and a node with a DaemonSet removed (root; about 18 min)
	$(E2E) -run '^TestNode(sMove|sReplace|Removal)$$' ./e2e

.PHONY: packets-mirror
packets-mirror: lab-basic ## A second cluster serves while the first one's CNI is replaced (root; about 8 min)
	@$(LAB) build flannel registry certmanager > /dev/null
	$(E2E) -run '^TestMirror$$' ./e2e

.PHONY: test-families
test-families: lab-basic ## Labs with IPv6: Services moved in each family with agents, there, back, and for good, and the default range of both (root; about 10 min, and more for the latter)
	$(E2E) -run '^TestFamilies' ./e2e

.PHONY: test-whole
test-whole: lab-basic ## The whole Service range moved and moved back, killed on the way (root; about 8 min)
	$(E2E) -run '^TestWholeRange$$' ./e2e

.PHONY: test-versions
test-versions: lab-basic ## With each Kubernetes that labs run: API tests, and the whole Service range moved, moved back, moved again and finished (root; about 2 h, and 15 min more the first time)
	@$(LAB) build kubernetes-v1.33 kubernetes-v1.31 > /dev/null
	@hack/test-versions.sh $(LAB)
	$(E2E) -timeout 100m -run '^TestVersions$$' ./e2e

.PHONY: test-matrix
test-matrix: lab-basic ## Rollback from every phase under traffic (root; about 20 min)
	$(E2E) -run '^TestMatrix' ./e2e

.PHONY: test-lab-endurance
test-lab-endurance: lab-plain ## A lab up and down twenty times in a row, looking for anything left behind (root; about 6 min)
	go -C test test -v -count=1 -timeout 30m ./endurance/...

.PHONY: test-soak
test-soak: lab-basic ## The whole Service range moved, back, and for good, while users work at random, nodes and API servers restart and replumb is killed, beside a model of every object (root; LENGTH=1h; SEED=... for what a run printed; KEEP=1 leaves the lab of one that fails)
	go -C test build -o $(BIN)/soak ./soak
	$(BIN)/soak -bin $(BIN) -length $(or $(LENGTH),1h) $(if $(SEED),-seed $(SEED)) $(if $(KEEP),-keep)

.PHONY: fuzz
fuzz: ## Fuzz the parsers for half a minute each
	hack/fuzz.sh 30s

.PHONY: bench
bench: lab-plain ## Measure what docs/benchmarks.md records (root; about 10 min, and 25 more with COLD=1)
	go -C test build -o $(BIN)/bench ./bench/lab && $(BIN)/bench -bin $(BIN) $(if $(COLD),-cold)

.PHONY: bench-servicecidr
bench-servicecidr: lab-api ## Measure moving 5,000 and 10,000 Services against the bare writes, without nodes (about 1 h; ARGS="-services 600" for less)
	go -C test build -o $(BIN)/bench-servicecidr ./bench/servicecidr
	$(ASSETS) $(BIN)/bench-servicecidr -replumb $(BIN)/replumb $(ARGS)

.PHONY: bench-podcidr
bench-podcidr: lab-api ## Measure the roll of 2,000 pods on 100 nodes that are played (about 5 min; ARGS="-deployments 20 -nodes 10" for less)
	go -C test build -o $(BIN)/bench-podcidr ./bench/podcidr
	$(ASSETS) $(BIN)/bench-podcidr $(ARGS)

.PHONY: bench-mirror
bench-mirror: lab-api ## Measure copying 31,000 Secrets and 10,000 other objects, beside bare clients, without nodes (about 10 min; ARGS="-secrets 2000 -mixed 1000" for less)
	go -C test build -o $(BIN)/bench-mirror ./bench/mirror
	$(ASSETS) $(BIN)/bench-mirror $(ARGS)

.PHONY: bench-rehearse
bench-rehearse: lab-api ## Measure the rehearsal of 1,000 Services and 5,000 pods (about 5 min; REHEARSE_SERVICES=10000 for others, with five pods each)
	@$(ASSETS) go -C lab test -count=1 -tags apiserver -timeout 90m -v -run '^TestRehearseMany$$' ./rehearsal

.PHONY: bench-moves
bench-moves: lab-plain ## Measure what is lost in 30 whole moves in a row, beside the naive way, and how long barriers take (root; about 80 min; ARGS="-moves 4" for less)
	go -C test build -o $(BIN)/bench-moves ./bench/moves
	$(BIN)/bench-moves $(ARGS)

.PHONY: bench-nodes
bench-nodes: lab-api ## Measure emptying 100 nodes of 30 pods each, beside kubectl drain; nodes are played (about 8 min; ARGS="-nodes 20 -deployments 20" for less)
	go -C test build -o $(BIN)/bench-nodes ./bench/nodes
	$(ASSETS) $(BIN)/bench-nodes $(ARGS)

.PHONY: bench-probe
bench-probe: build ## Measure what the prober loses when nothing is lost, how long it finds freezes to be, and what it takes (about 12 min; ARGS="-idle 1m" for less)
	go -C test build -o $(BIN)/bench-probe ./bench/probe
	$(BIN)/bench-probe -replumb $(BIN)/replumb $(ARGS)

.PHONY: test-alerts
test-alerts: ## Test the alerts of deploy/monitoring with promtool (installs the package prometheus, if it is missing: root)
	@hack/deps.sh promtool
	promtool check rules deploy/monitoring/alerts.yaml
	promtool test rules deploy/monitoring/alerts_test.yaml

.PHONY: lint
lint: $(LINT) vuln prose ## Static checks with gosec, import directions, formatting, known vulnerabilities (the linter itself is built the first time: about 5 min)
	@for module in $(MODULES); do echo "golangci-lint run ($$module)"; (cd $$module && $(LINT) run ./...) || exit; done
	@for component in kubernetes kubernetes-v1.33 kubernetes-v1.31 coredns calico certmanager; do echo "go vet ($$component)"; go -C lab/components/$$component vet . || exit; done

.PHONY: prose
prose: $(VALE) ## Check what users read, generated pages included, against the rules in hack/prose (built the first time: about 4 min, with a C compiler)
	$(VALE) --config hack/prose/vale.ini --output line README.md CONTRIBUTING.md SECURITY.md docs examples

.PHONY: vuln
vuln: ## Known vulnerabilities in what the product calls, its libraries and Go included (govulncheck; asks vuln.go.dev)
	@if curl --silent --fail --max-time 20 --output /dev/null https://vuln.go.dev/index/db.json; then \
		$(TOOL) govulncheck ./...; \
	else echo "NOT CHECKED for known vulnerabilities: https://vuln.go.dev cannot be reached from here"; fi

.PHONY: sbom
sbom: build ## Write build/replumb.cdx.json, the bill of materials of bin/replumb (CycloneDX)
	@mkdir -p build
	@$(TOOL) cyclonedx-gomod bin -json -output build/replumb.cdx.json -version "$$(git describe --tags --always --dirty)" $(BIN)/replumb
	@echo build/replumb.cdx.json

$(LINT): hack/tools/go.mod hack/tools/go.sum
	@mkdir -p $(BIN)
	go build -modfile=hack/tools/go.mod -o $(LINT) github.com/golangci/golangci-lint/v2/cmd/golangci-lint

$(VALE): hack/prose/go.mod hack/prose/go.sum
	@mkdir -p $(BIN)
	CGO_ENABLED=1 go -C hack/prose build -o $(VALE) github.com/vale-cli/vale/v3/cmd/vale

# It is built, since "go run" passes no SIGTERM on, and API servers would stay behind.
.PHONY: apipool
apipool:
	@mkdir -p $(BIN)
	@go build -o $(BIN)/apipool ./internal/testing/apipool

$(GOTESTSUM): hack/tools/go.mod hack/tools/go.sum
	@mkdir -p $(BIN)
	@go build -modfile=hack/tools/go.mod -o $(GOTESTSUM) gotest.tools/gotestsum

##@ Release

# goreleaser is a module of its own, since it brings hundreds of others; it takes long to build the first time.
GORELEASER  := $(BIN)/goreleaser
VERSION     ?= v0.0.0-snapshot.g$(shell git rev-parse --short HEAD 2>/dev/null || echo 0)

.PHONY: release-snapshot
release-snapshot: $(GORELEASER) ## Build all that a release has, without publishing or signing: archives for every system, checksums, bills of materials, the image, the chart (the first time about 20 min)
	@mkdir -p build
	@$(MAKE) --no-print-directory image ARCHES="amd64 arm64" | tee build/image.txt
	@$(MAKE) --no-print-directory release-artifacts DIGEST="$$(sed -n 's/.*@\(sha256:[0-9a-f]*\)$$/\1/p' build/image.txt)"
	@DIGEST="$$(sed -n 's/.*@\(sha256:[0-9a-f]*\)$$/\1/p' build/image.txt)" $(GORELEASER) release --snapshot --clean --skip=publish,sign
	@echo "dist has the archives, build/replumb-image the image, build/release the chart and the manifests"

.PHONY: release-artifacts
release-artifacts: ## Write build/release: the manifests and the chart of a release (VERSION=v0.1.0 DIGEST=sha256:…)
	@rm -rf build/release && mkdir -p build/release
	go run ./cmd/replumb install --image "ghcr.io/replumb/replumb:$(VERSION)$(if $(DIGEST),@$(DIGEST))" > build/release/replumb.yaml
	go -C hack/helm run ./pack -version $(VERSION) -digest "$(DIGEST)" -o $(CURDIR)/build/release
	cp deploy/monitoring/prometheusrule.yaml deploy/monitoring/alerts.yaml deploy/monitoring/dashboard.json build/release

.PHONY: release
release: $(GORELEASER) ## Publish the release of the tag that is checked out, for the release workflow
	$(GORELEASER) release --clean

.PHONY: test-release
test-release: ## Test the configuration of releases (needs the module of goreleaser, but does not build it)
	go -C hack/release test ./...

$(GORELEASER): hack/release/go.mod hack/release/go.sum
	@mkdir -p $(BIN)
	go -C hack/release build -o $(GORELEASER) github.com/goreleaser/goreleaser/v2

##@ Change

.PHONY: fmt
fmt: $(LINT) ## Format the code
	@for module in $(MODULES); do (cd $$module && $(LINT) fmt ./...) || exit; done

.PHONY: generate
generate: ## Regenerate deepcopy code, CRDs, manifests, files of the chart, and the pages of reference in docs
	$(TOOL) controller-gen object paths=./api/...
	$(TOOL) controller-gen crd paths=./api/... output:crd:dir=./deploy/crds
	go test ./docs -run 'TestFindingsPageIsUpToDate|TestRolesAreUpToDate' -update
	go test ./internal/installation -run 'TestKustomizeBase|TestChartFiles' -update
	go test ./internal/reporting/metrics -run TestMonitoringCopies -update
	go test ./hack/manual -run TestReferenceIsUpToDate -update
	go -C lab test ./labcli -run TestCommandsAreListed -update

# The generator is a module of its own, since it brings many others; it takes long to build the first time.
HUGO        := $(BIN)/hugo

.PHONY: docs
docs: $(HUGO) ## Build build/site, the documentation to read in a browser; it needs no network (the generator itself is built the first time: about 10 min)
	@$(HUGO) --source hack/site --destination $(CURDIR)/build/site --cleanDestinationDir --noBuildLock
	@echo build/site/index.html

$(HUGO): hack/site/go.mod hack/site/go.sum
	@mkdir -p $(BIN)
	go -C hack/site build -o $(HUGO) github.com/gohugoio/hugo

.PHONY: deps
deps: ## Install the Debian packages that tests and the lab need, if they are missing (root)
	@hack/deps.sh

.PHONY: clean
clean: ## Remove what was built in the tree; components stay in the cache
	rm -rf $(BIN) build

.PHONY: clean-cache
clean-cache: clean ## Also remove the cached components
	rm -rf "$${XDG_CACHE_HOME:-$$HOME/.cache}/replumb"

.PHONY: help
help: ## List the targets
	@awk 'BEGIN {FS = ":.*##"} /^##@/ {printf "\n%s\n", substr($$0, 5)} \
		/^[a-z-]+:.*##/ {printf "  %-20s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
