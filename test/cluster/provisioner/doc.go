// Package provisioner holds the tests of the provisioner and the shipped manifests on a real API server, controller
// manager and scheduler. Nodes are objects without a kubelet: every component that makes decisions is real, and
// nothing needs to boot.
package provisioner
