# flexlvm. `make` lists the targets.

VERSION ?= v0.1.0
MODULE   = github.com/flexlvm/flexlvm
IMAGE   ?= flexlvm/flexlvm:$(VERSION)
PROGRAMS = $(shell sed -n 's|^COPY \(.*\) /$$|\1|p' installer/Dockerfile)
TOOLS    = $${FLEXLVM_CACHE:-.cache}
LINK     = -trimpath -ldflags "-s -w -X $(MODULE)/internal/version.String=$(VERSION)"
SCRIPTS  = test/*.sh test/smoke/*.sh test/vm/image/*.sh .ci/run $(addprefix test/cluster/node/,init boot sshd containerd kubelet shutdown nfs)

SHELL       := /bin/bash
.SHELLFLAGS := -o pipefail -c
# keep leaves all that a long step printed where it can be read afterwards.
keep = 2>&1 | tee $(TOOLS)/$@.log

.DEFAULT_GOAL := help
.PHONY: help build image demo test setup lint generate generated test-unit test-s3 test-vm test-cluster campaign soak bench fuzz clean job-recipe

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | sort | expand -t 16

build: ## build the programs into bin/
	@CGO_ENABLED=0 go build $(LINK) -o bin/ $(PROGRAMS:%=./cmd/%)

image: setup build ## build the container image into bin/image.tar
	@mkdir -p bin/image && cp $(PROGRAMS:%=bin/%) bin/image/ && rm -f bin/image.tar
	@buildah --storage-driver vfs bud --quiet --isolation chroot -f installer/Dockerfile -t $(IMAGE) bin/image >/dev/null
	@buildah --storage-driver vfs push --quiet $(IMAGE) docker-archive:bin/image.tar:$(IMAGE)
	@echo "bin/image.tar holds $(IMAGE)"

demo: setup ## show claims, the way back, eviction and a dataset on a disposable cluster; KEEP=1 leaves it up
	@go run ./test/demo

test: setup lint test-unit test-s3 test-vm test-cluster ## run every check, and every test but those of make campaign
	@echo "All tests passed."

setup:
	@mkdir -p $(TOOLS) && test/setup.sh

lint: setup generated ## check the code's and the scripts' form
	@echo "== lint (the first time builds the linter: some minutes)"
	@go build -o $(TOOLS)/golangci-lint -modfile=tools/go.mod github.com/golangci/golangci-lint/v2/cmd/golangci-lint
	@$(TOOLS)/golangci-lint run ./...
	@shellcheck $(SCRIPTS)

GENERATED = .

generate: ## write the code and the CRDs that follow from the types in api/
	@go build -o $(TOOLS)/controller-gen -modfile=tools/go.mod sigs.k8s.io/controller-tools/cmd/controller-gen
	@$(TOOLS)/controller-gen paths=./api/... object output:object:dir=$(GENERATED)/api/v1 crd output:crd:dir=$(GENERATED)/installer/base/crd

generated:
	@echo "== generated files"
	@fresh=$$(mktemp -d) && trap 'rm -rf "$$fresh"' EXIT && $(MAKE) -s generate GENERATED="$$fresh" && \
		for path in api/v1/zz_generated.deepcopy.go installer/base/crd; do diff -ru $$path "$$fresh/$$path" || { \
		echo "$$path does not follow from the types in api/: run make generate and commit what it writes" >&2; exit 1; }; done

test-unit: ## test what needs no machine of its own
	@echo "== unit tests"
	@go test ./...

test-s3: setup ## test the loader against a real S3 server and its faults
	@echo "== tests with a real S3 server (the first time builds it: some minutes)"
	@go test -tags s3 -count=1 -p 1 -v -timeout 20m ./test/s3/... $(keep)

# What takes long on a virtual node is left to `make campaign`, by name: make test is to
# end within three quarters of an hour. What most of them are about has shorter tests.
CAMPAIGN_VM      = ^(TestEngineBesideUdev|TestSmokeOnAFile)$$
CAMPAIGN_CLUSTER = ^(TestInstaller|TestJobs|TestDrainedNodeKeepsItsVolumes|TestExamples|TestPodsGoWhereTheirClaimsFit)$$|$\
  ^TestVolumeHasExactlyTheSizeOfItsClaim$$/^(300Mi|2560Mi)$$|^TestNothingIsLostWithKubeletAndNode$$/^reboot$$|$\
  ^TestDataset(IsStreamed|GivesBackResults|ThatDoesNotFit|WithWrongCredentials|OnNFS)$$|^TestDataset$$/^a_replica_is_evicted$$|$\
  ^TestNodeDaemon$$/^(layouts|IO_limits|copied|in_use_elsewhere|pod_deleted_by_force|API_server_away|deleted_at_every_moment|killed_again_and_again)$$

# Whose nodes are simulated: they need little of the machine, and wait for each other's
# Kubernetes to be built.
SIMULATED = ./test/cluster/provisioner ./test/cluster/dataset

test-vm: setup ## test the engine, the driver and power cuts in virtual nodes
	@echo "== tests in virtual nodes (left to make campaign: $(CAMPAIGN_VM), and some of the engine with clones and layouts)"
	@go test -tags vm -count=1 -p 1 -v -timeout 100m -skip '$(CAMPAIGN_VM)' ./test/vm/... $(keep)

test-cluster: setup ## test everything on a real Kubernetes with virtual nodes
	@echo "== tests on a virtual cluster (left to make campaign: $(CAMPAIGN_CLUSTER))"
	@{ go test -tags cluster -count=1 -p 2 -v -timeout 50m -skip '$(CAMPAIGN_CLUSTER)' $(SIMULATED) && \
	   go test -tags cluster -count=1 -p 1 -v -timeout 50m -skip '$(CAMPAIGN_CLUSTER)' $$(go list -tags cluster ./test/cluster/... | grep -v $(SIMULATED:./%=-e %)); } $(keep)

campaign: setup ## test all that make test tests on virtual nodes and what it leaves out: every kill, race and power cut on every layout, outages, upgrades
	@FLEXLVM_CAMPAIGN=1 go test -tags vm -count=1 -p 1 -v -timeout 100m ./test/vm/... $(keep)
	@go test -tags cluster -count=1 -p 1 -v -timeout 60m ./test/cluster/... 2>&1 | tee -a $(TOOLS)/$@.log

SOAK_CLAIMS ?= 300

soak: setup ## let SOAK_CLAIMS=300 claims live and die on full disks while daemons are killed
	@SOAK_CLAIMS=$(SOAK_CLAIMS) go test -tags cluster -count=1 -v -timeout 6h ./test/cluster/soak

# The job's own words reach the shell through the environment, so that no quote in
# them is read twice.
job-recipe: export JOB_CMD = $(CMD)
job-recipe: ## start a job on a shared volume: NAME=count WORKERS=4 IMAGE=busybox:1.36 CMD='...' CLASS= SIZE= MODE= KEEP= (docs/jobs.md)
	@go run $(LINK) ./cmd/submit --name '$(NAME)' --workers '$(or $(WORKERS),1)' --image '$(IMAGE)' \
		$(if $(CLASS),--storage-class '$(CLASS)') $(if $(SIZE),--size-per-worker '$(SIZE)') $(if $(MODE),--access-mode '$(MODE)') \
		$(if $(KEEP),--keep-seconds '$(KEEP)') $(ARGS) -- sh -c "$$JOB_CMD"

bench: setup ## measure, side by side with the plain commands
	@go run ./test/bench

FUZZTIME ?= 1m

fuzz: ## search for inputs that break the parsers, FUZZTIME=1m for each
	@set -e; for target in volume:FuzzParseTags volume:FuzzParseIOLimits lvm:FuzzReport xfs:FuzzSuperblock flexvolume:FuzzParseRequest flexvolume:FuzzParseCall claim:FuzzClaimOf fetch:FuzzCheckPath nfs:FuzzLocate; do \
		echo "== $$target"; \
		go test -run '^$$' -fuzz "^$${target#*:}$$" -fuzztime $(FUZZTIME) "./internal/$${target%:*}"; \
	done

clean: down ## remove what was built, but for the cache
	@rm -rf bin

include test/cluster/cluster.mk
