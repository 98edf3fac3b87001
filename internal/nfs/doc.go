// Package nfs is the control side for volumes that pods on several nodes share: it creates one
// directory for each PersistentVolume in an export of an NFS server, and removes or keeps it when the
// claim is deleted. Kubelets mount the directory for pods; this process works on the export itself,
// which is mounted in its pod.
package nfs
