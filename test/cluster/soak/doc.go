// Package soak holds the test that creates and deletes many claims on a cluster of two nodes whose disks are too
// small for them, while the node daemon and the kubelets are killed, and checks at the end that nothing is left
// over or lost. `make test` runs it with 10 claims, in a few minutes; `make soak` with 300, or SOAK_CLAIMS.
package soak
