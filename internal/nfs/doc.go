// Package nfs is the control side for volumes that pods on several nodes share: it makes one
// directory for each PersistentVolume in an export of an NFS server, and removes or keeps it when
// the claim is gone. Kubelets mount the directory for pods; this process works on the export itself,
// which is mounted for it.
package nfs
