// Package migration moves an existing PersistentVolume to the other driver (FlexVolume or CSI). The
// volume itself stays as it is, and nothing is copied.
//
// The source of a PersistentVolume is immutable, so the object is deleted and created again, with the
// same name and for the same claim. In between, the claim's phase is Lost; kube-controller-manager then
// binds it again. Until then a second PersistentVolume, the placeholder, protects the volume: it names
// the same volume, so that the node daemon sees it as wanted and the provisioner charges for it, and it
// holds everything that the new PersistentVolume needs. It is a PersistentVolume, and not an annotation
// of the claim, because only users who may create PersistentVolumes can write one.
//
// Each step reads the current state and takes the next action. If a process is killed, the next call
// continues.
package migration
