// Package soak holds the test that lets many claims live and die on a cluster of
// two nodes whose disks are too small for them, while the node daemon and the
// kubelets are killed, and settles the accounts at the end. `make test` does it
// with 10 claims, in some minutes; `make soak` with 300, or SOAK_CLAIMS.
package soak
