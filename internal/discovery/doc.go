// Package discovery finds the file systems and disks of a node that become volumes as they are,
// decides which of them may be offered and cleaned, and cleans them. It knows nothing of
// Kubernetes.
//
// Machine scans and cleans, Judge decides and changes nothing. A Ledger,
// which outlives the process, records which disk was handed out to which PersistentVolume.
package discovery
