// Package nodeagent is the node daemon (cmd/gc): it takes back the volumes that nobody
// wants any more, makes room when a pool runs full, and reports what it sees.
//
// What is to be done is decided by internal/eviction. This package observes the node and
// the API server, and carries the decisions out.
package nodeagent
