// Package discovery finds on a node the file systems and disks that become volumes as they
// are, decides what may be offered and cleaned, and cleans. It knows nothing of Kubernetes.
//
// Finder.Find looks, Judge decides and does nothing, DeleteFiles and Erase clean. What was
// handed out to whom is in a Ledger, which outlives the process.
package discovery
