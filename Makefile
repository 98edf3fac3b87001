# flexlvm. `make` lists the targets.

# The version is defined in one place, which the image, the programs and the chart read.
VERSION ?= $(shell sed -n 's/^ *newTag: //p' installer/settings/kustomization.yaml)
MODULE   = github.com/flexlvm/flexlvm
IMAGE   ?= localhost/flexlvm/flexlvm
ARCH    ?= $(or $(GOARCH),$(shell go env GOHOSTARCH))
ARCHES  ?= amd64,arm64
TOOLS    = $${FLEXLVM_CACHE:-.cache}
RELEASE  = mkdir -p bin $(TOOLS) && GOOS= GOARCH= go build -C tools/release -o "$$(realpath $(TOOLS))/release" . && $(TOOLS)/release --version $(VERSION) --name $(IMAGE)
SCRIPTS  = test/*.sh test/smoke/*.sh test/vm/image/*.sh test/vm/arm64/*.sh test/vm/uml/*.sh .ci/run $(addprefix test/cluster/node/,init boot sshd containerd kubelet shutdown nfs systemctl sudo crictl)

# The other modules with flexlvm's code.
MODULES  = tools/release tools/chart

# Everything but the race detector is compiled like a release: with different flags, a cold run
# would compile every dependency twice.
export CGO_ENABLED = 0
export GOFLAGS := $(strip $(filter-out -trimpath,$(GOFLAGS)) -trimpath)

SHELL       := /bin/bash
.SHELLFLAGS := -o pipefail -c
SUITE        = test/suite.sh

.DEFAULT_GOAL := help
.PHONY: help build image image-oci push release helm demo test check setup lint deadcode generate generated reference kubernetes test-unit test-s3 test-page test-control test-vm test-cluster test-e2e test-daemon test-faults test-installer test-soak on-host test-modules campaign test-oldest conformance soak bench fuzz changelog clean job-recipe

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | sort | expand -t 16

build: ## build the programs into bin/
	@$(RELEASE) programs --arch $(ARCH) --to bin

image: ## build the container image into bin/image.tar, ARCH=arm64 for another architecture than this machine's
	@$(RELEASE) image --arch $(ARCH) --to bin/image.tar
	@echo "bin/image.tar holds $(IMAGE):$(VERSION)"

image-oci: ## build the image of all ARCHES=amd64,arm64 into bin/image-oci.tar, an OCI archive
	@$(RELEASE) oci --arch $(ARCHES) --to bin/image-oci.tar
	@echo "bin/image-oci.tar holds $(IMAGE):$(VERSION) for $(ARCHES)"

push: ## push the image of all ARCHES to REGISTRY=registry.example.org/storage, and print its digest
	@[ -n "$(REGISTRY)" ] || { echo "push: say where to, as in make push REGISTRY=registry.example.org/storage" >&2; exit 1; }
	@$(MAKE) --no-print-directory image-oci
	@$(RELEASE) push bin/image-oci.tar $(REGISTRY)/flexlvm:$(VERSION)

# KEY is a file with a private key, see docs/releases.md.
release: ## make a release in bin/release: images, programs, chart, bill of materials, checksums; KEY=file signs them
	@rm -rf bin/release
	@$(RELEASE) release --arch $(ARCHES) --to bin/release $(if $(KEY),--sign-key '$(KEY)')
	@echo "bin/release holds $(VERSION) for $(ARCHES)"

helm:
	@mkdir -p $(TOOLS) && GOOS= GOARCH= go build -C tools/chart -o "$$(realpath $(TOOLS))/helm" helm.sh/helm/v4/cmd/helm

demo: setup ## show claims, the way back, eviction and a dataset on a disposable cluster; KEEP=1 leaves it up
	@go run ./test/demo

test: setup ## run every check and every test
	@test/space.sh
	@begun=$$SECONDS; $(MAKE) --no-print-directory -j3 step-test-soak step-test-installer step-lint step-test-s3 step-test-unit step-test-control step-on-host && \
		echo "All tests passed, in $$(((SECONDS - begun) / 60)) minutes."

# A step starts when the steps that it depends on have passed, so nothing starts after a failure.
# There are never more than two virtual nodes: test-vm and test-e2e have two each, test-daemon, test-faults,
# test-installer and test-soak have one (and TestNothingIsLeftBehind of test-e2e a third, which it
# stops while it boots).
step-test-e2e: step-test-vm step-kubernetes
step-test-daemon step-test-faults: step-test-e2e
step-test-installer: step-test-faults
step-test-soak: step-test-daemon

# The linter, test-s3, test-page and the unit tests run one after another beside test-vm and test-e2e, and test-control
# and on-host after test-e2e, whose second half keeps both processors busy, so that the nodes share the processors with
# one or two steps. on-host waits for test-control: if both could start, it would get the place of test-daemon or
# test-faults, and the last step would start later. Helm is built first, or test-installer and test-modules would both
# build it at the same time.
step-lint: step-kubernetes
step-test-s3: step-lint
step-test-page: step-test-s3
step-test-unit: step-test-page
step-on-host: step-test-control step-helm
step-test-control: step-test-e2e step-kubernetes
step-test-installer: step-helm
step-helm: step-test-vm

# The unit tests, test-page and test-control have a lower priority than the nodes, but a higher one than the
# others: at nice 10 they would wait so long that some time out. Helm and Kubernetes are compiled at
# normal priority: with nice, beside the nodes, it took over half an hour on a slow machine.
step-lint step-test-s3 step-on-host: NICE = nice
step-test-unit step-test-page step-test-control: NICE = nice -n 5

STEPS = test-vm test-e2e test-daemon test-faults test-installer test-soak kubernetes lint test-s3 test-page test-unit on-host test-control helm

.PHONY: $(STEPS:%=step-%)
$(STEPS:%=step-%): step-%:
	@$(NICE) $(MAKE) --no-print-directory $*

on-host:
	@$(MAKE) --no-print-directory test-modules
	@$(MAKE) --no-print-directory deadcode

check: setup ## check what changed, for the inner loop: form, vet, linter, unit tests of what depends on it, three tests on a virtual node
	@begun=$$SECONDS; unformatted=$$(git ls-files -z --cached --others --exclude-standard '*.go' | xargs -0 gofmt -l) && \
		{ [ -z "$$unformatted" ] || { echo "run gofmt -w on: $$unformatted" >&2; exit 1; }; }; \
	$(MAKE) --no-print-directory lint && go vet ./... && \
	$(SUITE) -q check-unit go test -vet=off -v ./... && \
	FLEXLVM_ENGINE_TESTS='^(TestMountAgainKeepsData|TestExpand|TestRemove)$$' \
		$(SUITE) -q check-node go test -tags vm -count=1 -run '^TestEngine$$' -v ./test/vm/suite && \
	echo "Checked in $$((SECONDS - begun)) seconds."

setup:
	@mkdir -p $(TOOLS) && test/setup.sh

lint: setup generated ## check the code's and the scripts' form
	@echo "== lint (the first time builds the linter: some minutes)"
	@go build -o $(TOOLS)/golangci-lint -modfile=tools/go.mod github.com/golangci/golangci-lint/v2/cmd/golangci-lint
	@$(TOOLS)/golangci-lint run ./...
	@for module in $(MODULES); do (linter="$$(realpath $(TOOLS))/golangci-lint" && cd $$module && "$$linter" run ./...) || exit 1; done
	@shellcheck $(SCRIPTS)
	@GOOS=darwin go build -o /dev/null ./cmd/kubectl-flexlvm # which the release's test finds only late

# Some packages exist for tests, so functions that only tests call are not dead. The driver's entry
# point is called only by the kernel.
deadcode: setup ## find functions that nothing calls
	@echo "== functions that nothing calls"
	@go build -o $(TOOLS)/deadcode -modfile=tools/go.mod golang.org/x/tools/cmd/deadcode
	@dead=$$(GOGC=400 GOMEMLIMIT=4GiB $(TOOLS)/deadcode -test -tags vm,cluster,s3 ./...) && \
		dead=$$(sed '/cmd\/flexlvm\/entry.go.* unreachable func: entry$$/d' <<<"$$dead") && \
		{ [ -z "$$dead" ] || { echo "$$dead" >&2; echo "remove what nothing calls" >&2; exit 1; }; }

GENERATED = .

generate: ## write the code and the CRDs that follow from the types in api/, and the chart that follows from installer/
	@go build -o $(TOOLS)/controller-gen -modfile=tools/go.mod sigs.k8s.io/controller-tools/cmd/controller-gen
	@$(TOOLS)/controller-gen paths=./api/... object output:object:dir=$(GENERATED)/api/v1 crd output:crd:dir=$(GENERATED)/installer/base/crd
	@sed -i -f api/narrow.sed $(GENERATED)/installer/base/crd/*.yaml
	@go run -C tools/chart . --installer "$(CURDIR)/installer" --to "$(abspath $(GENERATED))/charts/flexlvm"

REFERENCE = ./cmd/csi ./cmd/fetch ./cmd/flexlvm ./cmd/gc ./cmd/kubectl-flexlvm ./cmd/provisioner ./monitoring
reference: ## write docs/reference, which follows from the programs and from monitoring/exported
	@go test -vet=off -count=1 -run '^TestReference$$' $(REFERENCE) -args -update

generated:
	@echo "== generated files"
	@fresh=$$(mktemp -d) && trap 'rm -rf "$$fresh"' EXIT && $(MAKE) -s generate GENERATED="$$fresh" && \
		for path in api/v1/zz_generated.deepcopy.go installer/base/crd charts/flexlvm/Chart.yaml charts/flexlvm/values.yaml charts/flexlvm/values.schema.json charts/flexlvm/templates/generated; do diff -ru $$path "$$fresh/$$path" || { \
		echo "$$path does not follow from the types in api/ or from installer/: run make generate and commit what it writes" >&2; exit 1; }; done

# The linter includes go vet, so the suites leave it out. Decisions are pure functions, and so are
# the tests that make thousands of them: they have no races, and the race detector would make them
# four times as slow, so they run without it.
PURE = TestPlanProperties|TestStartsPutOff|TestPlanByDevices|TestHeadroomIsReachedOnce|TestNeverInACircle|TestAllConverges

test-unit: setup ## test what needs no machine of its own, with the race detector
	@CGO_ENABLED=1 GOGC=400 $(SUITE) -q $@ go test -race -vet=off -skip '^($(PURE))$$' -v -timeout 90m ./...
	@[ "$$(git grep -hE '^func ($(PURE))\(' -- '*_test.go' | wc -l) $$(git grep -hE '^func ($(PURE))\(' -- internal/dataset internal/eviction | wc -l)" = "6 6" ] || \
		{ echo "test-unit: the tests of PURE are not the six of internal/dataset and internal/eviction any more" >&2; exit 1; }
	@$(SUITE) -q test-pure go test -vet=off -run '^($(PURE))$$' -v -timeout 30m ./internal/dataset ./internal/eviction

# go test's cache does not know files outside of a module, so -count=1 disables it.
test-modules: setup helm ## test what makes the image, the release and the chart
	@for module in $(MODULES); do $(SUITE) -q test-$${module##*/} go test -C $$module -count=1 -v -timeout 90m ./... || exit 1; done

test-s3: setup ## test the loader against a real S3 server and its faults
	@$(SUITE) $@ go test -tags s3 -vet=off -count=1 -p 1 -v -timeout 90m ./test/s3/...

CLUSTER_TEST = go test -tags cluster -vet=off -count=1 -p 1 -v

# The nodes of these tests are simulated.
PAGE    = ./test/cluster/page
CONTROL = ./test/cluster/provisioner ./test/cluster/dataset

# Before the suites, whose output go test may hold back until they end.
kubernetes: setup
	@go run ./test/cluster/ctl build

test-page: setup kubernetes ## test the page for 1,000 nodes on a real control plane
	@$(SUITE) $@ $(CLUSTER_TEST) -timeout 60m $(PAGE)

test-control: setup kubernetes ## test the provisioner and the controller of datasets on a real control plane
	@$(SUITE) -q test-placement go test -C test/cluster/kubernetes -v ./placement
	@$(SUITE) $@ go test -tags cluster -vet=off -count=1 -p 2 -v -timeout 100m $(CONTROL)

test-vm: setup ## test the engine, the driver and power cuts in virtual nodes
	@$(SUITE) $@ go test -tags vm -vet=off -count=1 -p 1 -v -timeout 100m ./test/vm/...

# Tests with their own clusters.
ALONE = ./test/cluster/gc ./test/cluster/installer ./test/cluster/soak

test-cluster: setup kubernetes ## test everything on a real Kubernetes with virtual nodes
	@$(MAKE) --no-print-directory test-e2e
	@$(MAKE) --no-print-directory -j2 test-daemon test-faults
	@$(MAKE) --no-print-directory -j2 test-installer test-soak

test-e2e: setup kubernetes ## test all that users do, on a real Kubernetes with two virtual nodes
	@$(SUITE) $@ $(CLUSTER_TEST) -timeout 100m $$(go list -tags cluster ./test/cluster/... | grep -v $(CONTROL:./%=-e %) $(PAGE:./%=-e %) $(ALONE:./%=-e %))

test-soak: setup kubernetes ## run ten claims through their life cycle on a node; soak is the same with 300 on two
	@$(SUITE) $@ $(CLUSTER_TEST) -timeout 30m ./test/cluster/soak

test-daemon: setup kubernetes ## test the node daemon's ordinary life on a real Kubernetes
	@$(SUITE) $@ $(CLUSTER_TEST) -timeout 60m -run '^TestNodeDaemon$$' ./test/cluster/gc

test-faults: setup kubernetes ## test the node daemon with faults
	@$(SUITE) $@ $(CLUSTER_TEST) -timeout 60m -skip '^TestNodeDaemon$$' ./test/cluster/gc

test-installer: setup kubernetes ## test installing, upgrading and uninstalling
	@$(SUITE) $@ $(CLUSTER_TEST) -timeout 60m ./test/cluster/installer

# The steps run one after another, the targets of a step side by side, and a failure does not stop the rest.
# campaign-daemon and campaign-faults have one virtual node each.
CAMPAIGN = 'campaign-release campaign-arm64' campaign-s3 campaign-vm campaign-vm-emulated campaign-cluster 'campaign-daemon campaign-faults' test-oldest soak

campaign: setup kubernetes ## test more often and on other nodes: more kills and power cuts on more layouts, emulated processors, SOAK_CLAIMS claims
	@begun=$$SECONDS failed=; \
	for step in $(CAMPAIGN); do $(MAKE) --no-print-directory -k -j2 $$step || failed+=" $$step"; done; \
	[ -z "$$failed" ] || { echo "Failed:$$failed" >&2; exit 1; }; \
	echo "All of the campaign passed, in $$(((SECONDS - begun) / 60)) minutes."

.PHONY: campaign-release campaign-arm64 campaign-s3 campaign-vm campaign-vm-emulated campaign-cluster campaign-daemon campaign-faults

campaign-release: setup
	@FLEXLVM_CAMPAIGN=1 $(SUITE) $@ go test -C tools/release -tags campaign -count=1 -v -timeout 1h ./...

campaign-arm64: setup
	@test/setup.sh arm64
	@FLEXLVM_NODES=arm64 $(SUITE) $@ go test -tags vm -count=1 -v -timeout 1h -run '^TestSmoke$$' ./test/vm/suite

campaign-s3: setup
	@FLEXLVM_CAMPAIGN=1 $(SUITE) $@ go test -tags s3 -vet=off -count=1 -p 1 -v -timeout 1h ./test/s3/...

campaign-vm: setup
	@FLEXLVM_CAMPAIGN=1 FLEXLVM_NODE_CPUS=2 $(SUITE) $@ go test -tags vm -count=1 -p 1 -v -timeout 4h ./test/vm/...

EMULATED = FLEXLVM_NODES=$${FLEXLVM_NODES:-tcg}

campaign-vm-emulated: setup
	@$(EMULATED) FLEXLVM_NODE_CPUS=2 $(SUITE) $@ go test -tags vm -count=1 -p 1 -v -timeout 4h ./test/vm/...

# Fewer tests in parallel, and one node for one test at a time, because emulation leaves no
# processor idle. Emulation only changes the nodes' kernel, so tests of what is above volumes, or
# beside them, are left out.
ABOVE = Dataset|Examples|UsersWay|Conformance$$|S3$$|CSI(Driver|Theft|Once|Dataset)|Door|Drained|PodsGo|Refused|Inline
campaign-cluster: setup kubernetes
	@$(EMULATED) FLEXLVM_CAMPAIGN=1 $(SUITE) $@ $(CLUSTER_TEST) -timeout 4h -parallel 3 -skip '^Test($(ABOVE))' ./test/cluster
	@FLEXLVM_CAMPAIGN=1 $(SUITE) $@-driver $(CLUSTER_TEST) -timeout 1h -run '^TestCSIDriverComesAndGoes$$' ./test/cluster

campaign-daemon: setup kubernetes
	@$(EMULATED) FLEXLVM_CAMPAIGN=1 $(SUITE) $@ $(CLUSTER_TEST) -timeout 2h -run '^TestNodeDaemon$$' ./test/cluster/gc

campaign-faults: setup kubernetes
	@$(EMULATED) FLEXLVM_CAMPAIGN=1 $(SUITE) $@ $(CLUSTER_TEST) -timeout 2h -skip '^TestNodeDaemon$$' ./test/cluster/gc

# The oldest supported Kubernetes, whose build takes ten more minutes.
test-oldest: setup ## install flexlvm, and use volumes and datasets, on the oldest Kubernetes
	@FLEXLVM_KUBERNETES=1.30 $(SUITE) $@ go test -tags cluster -count=1 -p 1 -v -timeout 60m -run '$(OLDEST)' ./test/cluster ./test/cluster/installer

OLDEST = ^(TestInstaller|TestVolume|TestDatasetGivesBackResults|TestDatasetIsMirrored)

SPECS ?= all

# Ten of these tests are part of test-e2e.
conformance: setup kubernetes ## run Kubernetes' own tests of CSI drivers on two nodes; SPECS=slow for those that are slow or serial, SPECS=disruptive for those that stop kubelet
	@$(SUITE) $@ go test -tags cluster -count=1 -v -timeout 4h -run '^TestConformance$$' ./test/cluster -conformance=$(SPECS)

SOAK_CLAIMS ?= 300

soak: setup kubernetes ## run SOAK_CLAIMS=300 claims through their life cycle on the full disks of two nodes while daemons are killed
	@SOAK_CLAIMS=$(SOAK_CLAIMS) SOAK_NODES=2 $(SUITE) $@ go test -tags cluster -count=1 -v -timeout 6h ./test/cluster/soak

# The job's arguments reach the shell through the environment, so that their quotes are not
# interpreted twice.
job-recipe: export JOB_CMD = $(CMD)
job-recipe: ## start a job on a shared volume: NAME=count WORKERS=4 IMAGE=busybox:1.36 CMD='...' CLASS= SIZE= MODE= KEEP= CONFIG= (docs/jobs.md)
	@go run -ldflags "-X $(MODULE)/internal/version.String=$(VERSION)" ./cmd/kubectl-flexlvm job submit --name '$(NAME)' --workers '$(or $(WORKERS),1)' --image '$(IMAGE)' \
		$(if $(CLASS),--storage-class '$(CLASS)') $(if $(SIZE),--size-per-worker '$(SIZE)') $(if $(MODE),--access-mode '$(MODE)') \
		$(if $(KEEP),--keep-seconds '$(KEEP)') $(if $(CONFIG),--config '$(CONFIG)') $(ARGS) -- sh -c "$$JOB_CMD"

bench: setup ## measure, side by side with the plain commands
	@go run ./test/bench

FUZZTIME ?= 1m

fuzz: ## search for inputs that break the parsers, FUZZTIME=1m for each
	@targets=$$(git grep --untracked '^func Fuzz' -- '*_test.go' | sed -E 's|/[^/]*:func (\w+).*| \1|') && \
	while read -r package target; do \
		echo "== $$package $$target"; \
		go test -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) "./$$package" </dev/null || exit 1; \
	done <<<"$$targets"

changelog: ## print what is not released yet as a section of CHANGELOG.md
	@printf '## %s\n\n' "$(VERSION)" && for change in changelog/unreleased/*.md; do sed '1s/^/- /; 1!s/^/  /' "$$change"; done

clean: down ## remove what was built, except the cache
	@rm -rf bin

include test/cluster/cluster.mk
