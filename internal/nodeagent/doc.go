// Package nodeagent is the node daemon (cmd/gc). It releases and removes volumes, makes room when a pool fills up,
// creates copies, snapshots and declared volumes and groups, discovers and cleans disks, limits IO, trims, enforces
// the sizes of directories in NFS exports, and reports the state of the node.
//
// Package eviction makes the decisions. This package observes the node and the API server, and carries the
// decisions out.
package nodeagent
