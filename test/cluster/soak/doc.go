// Package soak holds the test that lets many claims live and die on a cluster of
// two nodes whose disks are too small for them, while the node daemon and the
// kubelets are killed, and settles the accounts at the end. `make soak` runs it
// in full, `make test` in short.
package soak
