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
	// doomedPrefix marks a directory whose removal has been decided. It is hidden,
	// and no directory of a volume begins with a dot.
	doomedPrefix = ".deleting-"
	// archivedPrefix marks one that is kept after its claim is gone. The name after
	// it is whole.
	archivedPrefix = "archived-"
)

var namespaceForm = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// DirectoryName returns the name of a volume's directory in its export:
// <namespace>-<claim>-<PersistentVolume>. The first two are for people, and the claim's
// is cut if the whole would be too long. The name of the PersistentVolume contains the
// claim's UID, so no two claims share a directory, not even successive ones of the same
// name. The error is a *volume.FieldError.
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

// A place is where the directory of a volume lies.
type place struct {
	export  Export
	name    string       // of the directory; one component
	volume  string       // name of the PersistentVolume
	cluster string       // UID of this cluster's namespace kube-system
	size    volume.Bytes // that the server is to hold it to, where that is asked for
}

// locate reads from a PersistentVolume where its directory lies. It is believed
// only where every part of it is as this provisioner writes it. The error is a
// *volume.FieldError.
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
		return place{}, &volume.FieldError{Field: "spec.nfs", Value: source.Server + ":" + source.Path, Reason: "lies in no export of this provisioner, which has " + all.String() + "; see its flag --export"}
	}
	return place{export: export, name: name, volume: v.Name}, nil
}

// String returns the place as the server's administrator knows it.
func (p place) String() string {
	e := p.export
	e.Path = e.remote(p.name)
	return e.String()
}
