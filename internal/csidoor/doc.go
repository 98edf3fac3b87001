// Package csidoor is the CSI driver by which kubelet reaches the node engine: the identity
// and the node service, and kubelet's registration of plugins, on one socket.
//
// There is no controller service on it: PersistentVolumes are the provisioner's, and grow by
// what it writes. Who can open the socket is root on the node, so nothing here is a secret;
// what keeps a namespace from another's volumes is that the pod's namespace, which kubelet
// tells, is compared with the volume's tags.
package csidoor
