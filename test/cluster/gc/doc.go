// Package gc holds the tests of the node daemon, installed with the shipped
// manifests, on a node with a real kubelet and LVM under a real control plane.
package gc
