// Package csidoor is the CSI driver through which kubelet calls the node engine: CSI's identity and node
// services, and kubelet's plugin registration, on one socket.
//
// It has no controller service: the provisioner creates and grows PersistentVolumes. Only root on the node can
// open the socket, so nothing here is a secret. A namespace cannot mount another's volumes because the pod's
// namespace, which kubelet passes, is compared with the volume's tags.
package csidoor
