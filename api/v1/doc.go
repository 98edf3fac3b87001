// Package v1 holds the objects of the API group flexlvm.io/v1.
//
// +kubebuilder:object:generate=true
// +groupName=flexlvm.io
package v1
