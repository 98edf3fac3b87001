// Package dataset holds the tests of VolumeManagers on a real API server, controller manager and scheduler. Nodes
// are objects without a kubelet: the tests report the status of the loaders' pods as a kubelet would.
package dataset
