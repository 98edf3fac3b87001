// Package nodeagent is the node daemon (cmd/gc). It removes volumes that are no longer wanted, makes room when
// a pool fills up, and reports the state of the node.
//
// Package eviction makes the decisions. This package observes the node and the API server, and carries the
// decisions out.
package nodeagent
