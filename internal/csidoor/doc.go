// Package csidoor is the CSI driver through which kubelet calls the node engine: CSI's identity and node
// services, and kubelet's plugin registration, on one socket.
//
// The controller service is in package csicontroller, in the provisioner's process. Only root on the node can
// open the socket, so calls need no further authentication. A namespace cannot mount another's volumes: the
// pod's namespace, which kubelet passes, is compared with the volume's tags.
package csidoor
