// Package overview answers questions about a whole cluster from its API objects alone: the state of its nodes,
// its volumes, and what would happen if something changed. It does no I/O.
package overview
