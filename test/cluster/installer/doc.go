// Package installer holds the test that installs, upgrades and uninstalls flexlvm
// with the shipped manifests on a node with a real kubelet and containerd.
package installer
