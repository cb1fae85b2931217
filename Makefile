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
APIPOOL     := $(BIN)/apipool
# API servers that packages share instead of each booting one. They live briefly and need not be thrifty with memory.
POOL        := GOGC=400 $(APIPOOL) -plain 4 -full 2 --
FEW         := GOGC=400 $(APIPOOL) -plain 3 -full 2 --
# The product, the lab and the tests of both are modules of their own, so that the product depends on nothing of the others.
MODULES     := . lab test hack/tools
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

.PHONY: demo
demo: ## Watch a real cluster's Service range move under traffic, beside the naive way (root; about 2 min, and 5 more the first time)
	@echo "1. Debian packages, replumb and the programs of a cluster - Kubernetes, containerd, CoreDNS, CNI plugins - unless they are there:"
	@echo "   downloaded and built, about 5 min on two processors"
	@echo "2. A cluster of 2 nodes, its Service range moved under traffic, and taken down: about 2 min"
	@hack/deps.sh --lab
	@hack/modules.sh kubernetes containerd coredns cni > /dev/null 2>&1 & # beside compilers; building says what cannot be downloaded
	@$(MAKE) --no-print-directory build
	$(LAB) demo --replumb $(BIN)/replumb --result build/demo/result.json

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

.PHONY: lab
lab: deps build ## Build all components of labs, or those that COMPONENTS names (about 45 min the first time, then cached)
	@$(LAB) build $(COMPONENTS) > /dev/null

##@ Check

.PHONY: check
check: $(GOTESTSUM) ## Vet, and all tests that need nothing but Go: no root, no components (about a minute)
	@for module in $(MODULES); do echo "go vet ($$module)"; go -C $$module vet -tags $(TAGS),ownkernel ./... || exit; done
	@hack/gotest.sh . -vet=off -timeout 5m ./...
	@hack/gotest.sh lab -vet=off -timeout 5m ./...
	@hack/gotest.sh test -short -vet=off -timeout 5m ./soak/... ./conformance ./argocd # the model and the audit of the one, how the other compares, the script of the third
	@hack/gotest.sh hack/tools -vet=off -timeout 5m ./... # the chart

.PHONY: test
test: check systems deps build $(APIPOOL) test-root ## check, the systems that releases are for, and of each kind of migration: its promises on a real API server, a process that is killed, an attack; and real packets, for Services (root)
	@$(ASSETS) $(FEW) hack/apitests.sh
	@$(ASSETS) hack/gotest.sh test -count=1 -parallel 3 -timeout 10m ./kill ./hostile
	@$(MAKE) --no-print-directory test-move # by itself: what measures losses needs the processors

.PHONY: systems
SYSTEMS := windows/amd64 darwin/arm64
test: SYSTEMS := windows/amd64 # whose system calls differ most, and which takes 2 min to compile on 2 processors
systems: export GOGC := 400
systems: ## Build replumb for Windows and macOS, and keep nothing
	@for system in $(SYSTEMS); do echo "go build ($$system)"; GOOS=$${system%/*} GOARCH=$${system#*/} go build -o /dev/null ./cmd/replumb || exit; done

.PHONY: test-move
test-move: ## Services moved under traffic while replumb is killed, and finished, beside one that is deleted and recreated (root; about 2 min)
	@$(MAKE) --no-print-directory e2e RUN=move

.PHONY: test-lab
test-lab: ## The shortest tests with real packets between real nodes, which show what all others stand on (root; about 6 min)
	@$(MAKE) --no-print-directory e2e RUN=lab

.PHONY: e2e
e2e: $(if $(RUN),deps build $(GOTESTSUM)) ## Tests of whole programs by name, with packets, kills, attacks and roles: RUN="calico planes", or RUN=all (root; CONTRIBUTING.md has the names)
	@$(if $(RUN),$(ASSETS)) hack/e2e.sh $(RUN)

.PHONY: test-api
test-api: deps build $(APIPOOL) $(GOTESTSUM) ## Tests against a real etcd and API server, and beside programs of Debian; RACE=1 looks for races
ifdef RACE
	@$(ASSETS) CGO_ENABLED=1 $(POOL) hack/gotest.sh . -race -tags apiserver,programs,long -p 3 -timeout 60m ./...
else
	@$(ASSETS) $(POOL) hack/apitests.sh long
	@$(ASSETS) hack/gotest.sh lab -short -tags apiserver,programs,long -timeout 10m ./...
	@$(ASSETS) hack/gotest.sh test -short -tags apiserver,programs,long -timeout 10m ./soak ./browser
endif

.PHONY: test-root
test-root: $(GOTESTSUM) ## Tests of the machine's own network, each in a network namespace of its own (root)
	@hack/gotest.sh . -tags root -timeout 10m ./internal/network/masquerade ./internal/network/nodecleanup ./internal/network/proxyrules ./internal/network/tunneladdr ./internal/verify/conntrack
	@hack/gotest.sh lab -tags root -timeout 10m ./lab ./cgroup

.PHONY: test-long
test-long: check test-root test-api ## All tests, one after the other (root; many hours)
	@$(MAKE) --no-print-directory test-api RACE=1
	@$(MAKE) --no-print-directory e2e RUN=all

# All tests of one kind of migration, for a change of it: those of its packages and commands, of processes killed at every command, of attacks
# and of roles, and then those with packets. What several kinds stand on (internal/kube, internal/safety, internal/verify and others) is in
# check and test-api. Arguments: packages, tests of internal/cli, of test/kill, of test/hostile, of test/rights; none is written none; names of
# e2e.
define whole
	@$(ASSETS) $(POOL) hack/gotest.sh . -short -vet=off -tags $(TAGS) -timeout 60m $(1)
	@$(ASSETS) $(POOL) hack/gotest.sh . -short -vet=off -tags $(TAGS) -timeout 60m -run '^($(2))$$' ./internal/cli
	@[ '$(3)' = none ] || $(ASSETS) hack/gotest.sh test -short -count=1 -tags long -parallel 3 -timeout 30m -run '^($(3))$$' ./kill
	@$(ASSETS) hack/gotest.sh test -count=1 -tags long -timeout 20m -run '^($(4))$$' ./hostile
	@$(ASSETS) hack/gotest.sh test -short -count=1 -timeout 40m -run '^($(5))$$' ./rights
	@$(MAKE) --no-print-directory e2e RUN="$(6)"
endef

.PHONY: test-services
test-services: deps build $(APIPOOL) $(GOTESTSUM) ## All tests of moves of Services (root; hours)
	$(call whole,./internal/migrations/servicecidr/... ./internal/kube/stored ./internal/network/bridge/... ./internal/operator/...,Test(Cluster|Operator|Fleet|Ranges|Together)(Long)?,TestKillAnywhere,Test.*,TestServices,lab calico proof outside nodeports planes overlap rehearsal neighbours stored restarts operator fleet together gitops released conformance whole families versions matrix)

.PHONY: test-pods
test-pods: deps build $(APIPOOL) $(GOTESTSUM) ## All tests of moves of pods (root; about 90 min)
	$(call whole,./internal/migrations/podcidr/... ./internal/network/calico/... ./internal/network/nodeipam/... ./internal/network/tunneladdr/...,Test(Pods|Together)(Long)?,TestKillPodsAnywhere,Test(Agent|Speaks|Kubelet|Loop|Echo).*,Test(Pods|NodeRanges),calico pods together)

.PHONY: test-nodes
test-nodes: deps build $(APIPOOL) $(GOTESTSUM) ## All tests of moves of nodes and control planes (root; about 45 min)
	$(call whole,./internal/migrations/nodes/... ./internal/kube/etcd/... ./internal/kube/controlplane/... ./internal/kube/disruption/...,TestNodes(Long)?,Test(Kill(Nodes|TwoEtcds|ExternalEtcd|Replace).*|NaiveEtcd),Test(FilesFromTheCluster|KubeletTakesItsNodeOutOfTheProof),TestNodes,nodes)

.PHONY: test-cni
test-cni: deps build $(APIPOOL) $(GOTESTSUM) ## All tests of networks replaced in place (root; about 3 h)
	$(call whole,./internal/migrations/cni/... ./internal/network/masquerade/... ./internal/network/nodecleanup/... ./internal/network/podnetwork/...,TestNetworks,none,TestNetworkNamedAfterARoot,TestCNI,cilium cni)

.PHONY: test-mirror
test-mirror: deps build $(APIPOOL) $(GOTESTSUM) ## All tests of mirrors (root; about 30 min)
	$(call whole,./internal/migrations/mirror/... ./internal/kube/objectsync/... ./internal/network/dnscutover/... ./internal/network/dnsrecords/...,TestMirror,TestKillMirrorAnywhere,Test(KubeconfigFromASecret|SwappedTarget|StatusOfAMirrorOpensNothing),TestMirror,mirror)

.PHONY: fuzz
fuzz: ## Fuzz the parsers for half a minute each
	hack/fuzz.sh 30s

.PHONY: bench
bench: deps build ## Measure what docs/design/measurements.md records: RUN=lab (root), services, pods, nodes, mirror, moves (root), probe or rehearse; ARGS="-services 600" for others
	go -C test build -o $(BIN)/bench ./bench
	@$(if $(filter lab moves,$(or $(RUN),lab)),$(LAB) build kubernetes containerd coredns cni > /dev/null)
ifeq ($(RUN),rehearse)
	@$(ASSETS) go -C lab test -count=1 -tags apiserver -timeout 90m -v -run '^TestRehearseMany$$' ./rehearsal
else
	@$(ASSETS) $(BIN)/bench $(or $(RUN),lab) $(if $(COLD),-cold) $(ARGS)
endif

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
$(APIPOOL): FORCE
	@mkdir -p $(BIN)
	@go build -o $@ ./internal/testing/apipool
FORCE:

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
	@go -C hack/release test ./...
	@$(MAKE) --no-print-directory image ARCHES="amd64 arm64" | tee build/image.txt
	@$(MAKE) --no-print-directory release-artifacts DIGEST="$$(sed -n 's/.*@\(sha256:[0-9a-f]*\)$$/\1/p' build/image.txt)"
	@DIGEST="$$(sed -n 's/.*@\(sha256:[0-9a-f]*\)$$/\1/p' build/image.txt)" $(GORELEASER) release --snapshot --clean --skip=publish,sign
	@echo "dist has the archives, build/replumb-image the image, build/release the chart and the manifests"

.PHONY: release-artifacts
release-artifacts: ## Write build/release: the manifests and the chart of a release (VERSION=v0.1.0 DIGEST=sha256:…)
	@rm -rf build/release && mkdir -p build/release
	go run ./cmd/replumb install --image "ghcr.io/replumb/replumb:$(VERSION)$(if $(DIGEST),@$(DIGEST))" > build/release/replumb.yaml
	go -C hack/tools run ./chart/pack -version $(VERSION) -digest "$(DIGEST)" -o $(CURDIR)/build/release
	cp deploy/monitoring/prometheusrule.yaml deploy/monitoring/alerts.yaml deploy/monitoring/dashboard.json build/release

.PHONY: release
release: $(GORELEASER) ## Publish the release of the tag that is checked out, for the release workflow
	$(GORELEASER) release --clean

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
clean: ## Remove what was built in the tree; CACHE=1 also the cached components
	rm -rf $(BIN) build $(if $(CACHE),"$${XDG_CACHE_HOME:-$$HOME/.cache}/replumb")

.PHONY: help
help: ## List the targets
	@awk 'BEGIN {FS = ":.*##"} /^##@/ {printf "\n%s\n", substr($$0, 5)} \
		/^[a-z0-9-]+:.*##/ {printf "  %-20s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
