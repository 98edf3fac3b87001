// Package csicontroller is CSI's controller service, for the sidecars that the CSI project
// makes, on a socket of their pod alone. It changes the limits on IO of volumes that are
// there, by which VolumeAttributesClasses are applied to claims; and it has snapshots taken and
// deleted, if its process has the ledger.
//
// It neither makes volumes nor lets them grow: the provisioner does, which reserves the room
// for all that a pod needs, and says why a claim cannot have it. So it offers neither, and tells
// CSI's resizer that the nodes do not let volumes grow either, or the resizer would raise
// PersistentVolumes by itself.
//
// The service keeps no state. Every process may change limits, with or without the lease: what is
// written is a function of the call alone. Snapshots take room, so only the holder of the lease serves
// them, on a separate socket.
package csicontroller
