// Package provisioner holds the tests that prove the provisioner and the shipped
// manifests on a real API server, controller manager and scheduler. Nodes are
// objects without a kubelet: what decides is there, and nothing needs to boot.
package provisioner
