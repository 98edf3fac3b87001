// Package staticvolume makes PersistentVolumes of the file systems and disks that nodes discover,
// and deletes the PersistentVolume of one that its node has cleaned, so that a new one can be made.
// Only nodes look at disks and clean them; this package relies on their NodeStorages.
package staticvolume
