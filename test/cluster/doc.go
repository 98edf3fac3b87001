// Package cluster runs a disposable Kubernetes cluster on this machine: a real
// etcd, API server, controller manager and scheduler, and virtual machines
// with a real containerd and kubelet as its nodes.
//
// A supervisor process runs the cluster. It is the first process of a PID namespace and
// has its own network namespace, so however it ends, the kernel removes every process,
// bridge and tap device with it. On disk the cluster has one folder, removed by the
// supervisor or, if it was killed, at the next start.
//
// The parts of the network, all inside that namespace:
//
//	10.88.0.1         control plane, on the bridge
//	10.88.0.10+n      node n
//	10.244.n.0/24     pods of node n
//	10.96.0.1:443     the API server as pods know it; nodes translate it
package cluster
