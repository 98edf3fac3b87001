package provision

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/flexlvm/flexlvm/internal/controlplane"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// snapshotGroup is the API group of VolumeSnapshots.
const snapshotGroup = "snapshot.storage.k8s.io"

func (s dataSource) isSnapshot() bool { return s.group == snapshotGroup && s.kind == "VolumeSnapshot" }

// snapshotOrigin returns the snapshot that a claim starts as a copy of. Its errors are those of origin.
// Whatever a VolumeSnapshot of the claim's namespace refers to, a snapshot of another namespace's
// volume is refused.
func (p *Provisioner) snapshotOrigin(ctx context.Context, request Request, spec volume.Spec, name string) (origin, error) {
	handle, err := p.Listers.Live.Snapshot(ctx, request.Claim.Namespace, name)
	if err != nil {
		return origin{}, waiting(name, "%s", err)
	}
	_, n, _, err := pv.ParseHandle("status.snapshotHandle", handle)
	if err != nil {
		return origin{}, waiting(name, "%s", err)
	}
	object, err := p.Listers.Volumes.Get(string(n))
	if err != nil {
		return origin{}, waiting(name, "the PersistentVolume of its snapshot cannot be looked up: %s", err)
	}
	c, err := persistentvolume.Parse(object)
	switch {
	case err != nil:
		return origin{}, waiting(name, "%s", err)
	case !persistentvolume.IsSnapshot(object) || object.Spec.CSI.VolumeHandle != handle:
		return origin{}, waiting(name, "PersistentVolume %q does not stand for its snapshot %s", object.Name, handle)
	case c.Deleting:
		return origin{}, waiting(name, "its snapshot is being deleted; name another")
	case !c.Taken:
		return origin{}, waiting(name, "its snapshot is not taken yet")
	}
	var wrong controlplane.Problems
	switch {
	case c.ClaimNamespace != request.Claim.Namespace:
		wrong.Add(fmt.Sprintf("dataSource %q: its snapshot is of a volume of another namespace, and only that can restore it", name))
		return origin{}, wrong.Refusal()
	case c.Lost != "":
		wrong.Add(fmt.Sprintf("dataSource %q: %s", name, c.Lost))
		return origin{}, wrong.Refusal()
	}
	if err := p.checkCopyable(request, spec, name, &c); err != nil {
		return origin{}, err
	}
	return p.originOn(object, &c, name, fmt.Sprintf("snapshot %q", name))
}

// A volumeSnapshot holds the required fields of VolumeSnapshots and of their contents.
type volumeSnapshot struct {
	Metadata metav1.ObjectMeta `json:"metadata"`
	Spec     struct {
		Driver string `json:"driver"`
		Ref    struct {
			Namespace string `json:"namespace"`
			Name      string `json:"name"`
			UID       string `json:"uid"`
		} `json:"volumeSnapshotRef"`
	} `json:"spec"`
	Status struct {
		Content string `json:"boundVolumeSnapshotContentName"`
		Handle  string `json:"snapshotHandle"`
		Ready   bool   `json:"readyToUse"`
	} `json:"status"`
}

// snapshotNow returns a function that reads the handle of a VolumeSnapshot from the API server. The
// snapshot and its content must refer to each other; otherwise the content belongs to another snapshot.
func snapshotNow(client kubernetes.Interface) func(ctx context.Context, namespace, name string) (string, error) {
	get := func(ctx context.Context, out *volumeSnapshot, namespace, resource, name string) error {
		// Users write these names, and only Name rejects a name that leads to another path.
		request := client.Discovery().RESTClient().Get().AbsPath("/apis", snapshotGroup, "v1").
			NamespaceIfScoped(namespace, namespace != "").Resource(resource).Name(name)
		data, err := request.SetHeader("Accept", "application/json").Do(ctx).Raw()
		if err != nil {
			return err
		}
		return json.Unmarshal(data, out)
	}
	return func(ctx context.Context, namespace, name string) (string, error) {
		var snapshot, content volumeSnapshot
		err := get(ctx, &snapshot, namespace, "volumesnapshots", name)
		switch {
		case apierrors.IsNotFound(err):
			return "", fmt.Errorf("namespace %q has no such VolumeSnapshot; create it", namespace)
		case err != nil:
			return "", fmt.Errorf("look up the VolumeSnapshot: %w", err)
		case snapshot.Metadata.DeletionTimestamp != nil:
			return "", errors.New("that VolumeSnapshot is being deleted; name another")
		case snapshot.Status.Content == "" || !snapshot.Status.Ready:
			return "", errors.New("that VolumeSnapshot is not ready yet")
		}
		if err := get(ctx, &content, "", "volumesnapshotcontents", snapshot.Status.Content); err != nil {
			return "", fmt.Errorf("look up VolumeSnapshotContent %q: %w", snapshot.Status.Content, err)
		}
		return content.handleFor(snapshot.Metadata)
	}
}

// handleFor returns the handle of a content, if the content is this VolumeSnapshot's.
func (v volumeSnapshot) handleFor(of metav1.ObjectMeta) (string, error) {
	ref := v.Spec.Ref
	switch {
	case ref.Namespace != of.Namespace || ref.Name != of.Name || ref.UID != string(of.UID):
		return "", fmt.Errorf("VolumeSnapshotContent %q is not that VolumeSnapshot's, but that of %s/%s", v.Metadata.Name, ref.Namespace, ref.Name)
	case v.Spec.Driver != pv.Provisioner:
		return "", fmt.Errorf("its snapshot is of driver %q, and not of flexlvm", v.Spec.Driver)
	case v.Status.Handle == "":
		return "", fmt.Errorf("VolumeSnapshotContent %q names no snapshot yet", v.Metadata.Name)
	}
	return v.Status.Handle, nil
}
