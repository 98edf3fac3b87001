// Package soak holds the test that creates and deletes many claims on nodes whose disks are too small for them, while
// the node daemon and the kubelets are killed, and checks at the end that nothing is left over or lost. `make test`
// runs it with 10 claims on one node, in a minute; `make soak` on two nodes with 300 claims, or SOAK_CLAIMS.
package soak
