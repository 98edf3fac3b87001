// Package kubeobject reads and changes objects of Kubernetes that are in memory. It does no I/O.
package kubeobject
