package nfs

import (
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/flexlvm/flexlvm/internal/nfsmark"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

const (
	// doomedPrefix marks a directory whose removal has been decided. The name is hidden, and no
	// volume's directory begins with a dot.
	doomedPrefix = ".deleting-"
	// archivedPrefix marks a directory that is kept after its claim is deleted. The full name follows.
	archivedPrefix = "archived-"
)

var namespaceForm = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// DirectoryName returns the name of a volume's directory in its export:
// <namespace>-<claim>-<PersistentVolume>. The first two are for people; the claim's name is cut if the
// result would be too long. The PersistentVolume's name contains the claim's UID, so no two claims
// share a directory, not even successive claims of the same name. The error is a *volume.FieldError.
func DirectoryName(namespace, claim, volumeName string) (string, error) {
	if !namespaceForm.MatchString(namespace) {
		return "", &volume.FieldError{Field: "metadata.namespace", Value: namespace, Reason: "cannot be the name of a namespace"}
	}
	if _, err := pv.ParseObjectName("metadata.name", claim); err != nil {
		return "", err
	}
	if err := nfsmark.CheckVolumeName(volumeName); err != nil {
		return "", err
	}
	room := nfsmark.MaxName - len(namespace) - len(volumeName) - len("--")
	if len(claim) > room {
		claim = strings.TrimRight(claim[:room], "-.")
	}
	return namespace + "-" + claim + "-" + volumeName, nil
}

// A place is the location of a volume's directory.
type place struct {
	export  Export
	name    string       // of the directory; one component
	volume  string       // name of the PersistentVolume
	cluster string       // UID of this cluster's namespace kube-system
	size    volume.Bytes // to be enforced by the server; 0 if not requested
}

// locate returns the location of a PersistentVolume's directory. It accepts only what this provisioner
// writes itself. The error is a *volume.FieldError.
func (all Exports) locate(v *corev1.PersistentVolume) (place, error) {
	source := v.Spec.NFS
	if source == nil {
		return place{}, &volume.FieldError{Field: "spec.nfs", Reason: "is missing: this is no volume of " + Name}
	}
	if err := checkPath("spec.nfs.path", source.Path); err != nil {
		return place{}, err
	}
	parent, name, _ := cutLast(source.Path, "/")
	if parent == "" {
		parent = "/"
	}
	if err := nfsmark.CheckDirectory("spec.nfs.path", name, v.Name); err != nil {
		return place{}, err
	}
	export, found := all.find(source.Server, parent)
	if !found {
		return place{}, &volume.FieldError{Field: "spec.nfs", Value: source.Server + ":" + source.Path, Reason: "is in no export of this provisioner, which has " + all.String() + "; see its flag --export"}
	}
	return place{export: export, name: name, volume: v.Name}, nil
}

// String returns the place as a path on the server.
func (p place) String() string {
	e := p.export
	e.Path = e.remote(p.name)
	return e.String()
}
