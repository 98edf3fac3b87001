// Package migration lets an existing PersistentVolume go through the other door. The volume
// itself stays as it is, and nothing is copied.
//
// The source of a PersistentVolume cannot be changed, so it is deleted and made anew, with
// the same name and for the same claim; kube-controller-manager, which calls the claim Lost
// in between, binds it again. What keeps the volume in between is a second PersistentVolume,
// the placeholder: it names the same volume, so that the node daemon sees it wanted and the
// provisioner sees it charged, and it holds all that the new one is to be like. It is an
// object that only those can write who may create PersistentVolumes, which an annotation of
// the claim would not be.
//
// Each step reads anew what is there, and does the next thing. Whoever is killed is followed
// by whoever calls next.
package migration
