// Package dataset holds the tests that prove VolumeManagers on a real API server,
// controller manager and scheduler. Nodes are objects without a kubelet: the tests
// say what a kubelet would of the loaders' pods.
package dataset
