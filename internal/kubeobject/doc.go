// Package kubeobject reads and changes Kubernetes objects in memory. It does no I/O.
package kubeobject
