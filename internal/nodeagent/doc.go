// Package nodeagent is the node daemon (cmd/gc): it removes volumes that are no longer
// wanted, makes room when a pool fills up, and reports what it sees.
//
// Package eviction decides what to do. This package observes the node and the API server,
// and carries the decisions out.
package nodeagent
