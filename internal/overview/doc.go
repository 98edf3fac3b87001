// Package overview answers what people ask about a whole cluster from its objects alone: how its
// nodes are, what volumes there are, and what would happen if something changed. No I/O.
package overview
