// Package csicontroller is CSI's controller service for the sidecars of the CSI project, on a socket in their
// pod. It changes the IO limits of existing volumes, by which VolumeAttributesClasses are applied to claims. If
// its process has the ledger, it also has snapshots taken and deleted.
//
// It neither creates nor grows volumes: the provisioner does, because it reserves the room for everything that
// a pod needs and reports why a claim cannot have it. So the service offers neither, and reports to CSI's
// resizer that the nodes do not expand volumes either; otherwise the resizer would raise the capacity of
// PersistentVolumes itself.
//
// The service is stateless. Every process may change limits, with or without the lease, because what is written
// depends on the call alone. Snapshots take room, so only the holder of the lease serves them, on a separate
// socket.
package csicontroller
