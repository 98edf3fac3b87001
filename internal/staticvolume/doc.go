// Package staticvolume creates PersistentVolumes for the file systems and disks that nodes discover, and
// deletes a PersistentVolume once its node has cleaned the disk, so that a new one can be created. Only nodes
// inspect and clean disks; this package relies on their NodeStorages.
package staticvolume
