# A cluster to play with. See test/cluster/doc.go.

NODES ?= 1
NODE ?= node1
CTL = go run ./test/cluster/ctl

.PHONY: up down status kubectl node-shell load-image

up: ## start a Kubernetes cluster of virtual machines, NODES=2 for two nodes
	@$(CTL) up --nodes $(NODES)

load-image: ## build flexlvm's image and bring it to the cluster's nodes
	@$(CTL) load-image

down: ## stop the cluster and remove all that is left of it
	@$(CTL) down

status: ## list the cluster's components and nodes
	@$(CTL) status

kubectl: ## run kubectl in the cluster, ARGS='get pods -A'
	@$(CTL) kubectl $(ARGS)

node-shell: ## open a shell on a node, NODE=node2, or run CMD='lvs' there
	@$(CTL) node-shell $(NODE) $(if $(CMD),'$(CMD)')
