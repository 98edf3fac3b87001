package csicontroller

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// ListSnapshots returns the snapshots that are taken and not deleted.
func (s *Service) ListSnapshots(ctx context.Context, r *csi.ListSnapshotsRequest) (*csi.ListSnapshotsResponse, error) {
	if s.snapshots == nil {
		return nil, notServed()
	}
	var objects []corev1.PersistentVolume
	if id := r.GetSnapshotId(); id != "" {
		object, err := s.findSnapshot(ctx, id)
		if err != nil {
			return nil, err
		}
		if object != nil {
			objects = append(objects, *object)
		}
	} else {
		list, err := s.volumes.List(ctx, metav1.ListOptions{LabelSelector: pv.LabelSnapshot})
		if err != nil {
			return nil, fmt.Errorf("list the PersistentVolumes of snapshots: %w", err)
		}
		objects = list.Items
	}
	objects = slices.DeleteFunc(objects, func(o corev1.PersistentVolume) bool {
		_, taken := persistentvolume.TakenAt(&o)
		return !persistentvolume.IsSnapshot(&o) || o.DeletionTimestamp != nil || !taken || r.GetSourceVolumeId() != "" && sourceOf(&o) != r.GetSourceVolumeId()
	})
	slices.SortFunc(objects, func(a, b corev1.PersistentVolume) int { return strings.Compare(a.Name, b.Name) })
	return page(objects, r.GetStartingToken(), int(r.GetMaxEntries()))
}

// page returns the snapshots from a token on. The token is the number of snapshots before.
func page(objects []corev1.PersistentVolume, token string, maxEntries int) (*csi.ListSnapshotsResponse, error) {
	from := 0
	if token != "" {
		n, err := strconv.Atoi(token)
		if err != nil || n < 0 || n > len(objects) {
			return nil, status.Errorf(codes.Aborted, "starting_token %q: is none that was given out; list from the beginning", token)
		}
		from = n
	}
	out := &csi.ListSnapshotsResponse{}
	for i := from; i < len(objects); i++ {
		if maxEntries > 0 && i-from == maxEntries {
			out.NextToken = strconv.Itoa(i)
			break
		}
		one, err := describe(&objects[i])
		if err != nil {
			return nil, err
		}
		out.Entries = append(out.Entries, &csi.ListSnapshotsResponse_Entry{Snapshot: one})
	}
	return out, nil
}

// findSnapshot returns the PersistentVolume of a snapshot; nil if there is none.
func (s *Service) findSnapshot(ctx context.Context, id string) (*corev1.PersistentVolume, error) {
	_, name, readers, err := pv.ParseHandle(fieldSnapshot, id)
	if err != nil || readers {
		return nil, nil //nolint:nilerr // a handle that is not flexlvm's is no snapshot
	}
	object, err := s.volumes.Get(ctx, string(name), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("get PersistentVolume %q: %w", name, err)
	case !persistentvolume.IsSnapshot(object) || object.Spec.CSI.VolumeHandle != id:
		return nil, nil
	}
	return object, nil
}

// sourceOf returns the handle of a snapshot's source volume.
func sourceOf(object *corev1.PersistentVolume) string {
	options := persistentvolume.Options(object)
	return pv.Handle(volume.Group(options[volume.OptionGroup]), volume.Name(options[volume.OptionCloneOf]), false)
}

// describe returns a snapshot that is taken. Its error is not final (see CreateSnapshot), because the snapshot
// exists.
func describe(object *corev1.PersistentVolume) (*csi.Snapshot, error) {
	c, err := persistentvolume.Parse(object)
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	at, _ := persistentvolume.TakenAt(object)
	return &csi.Snapshot{
		SnapshotId: object.Spec.CSI.VolumeHandle, SourceVolumeId: sourceOf(object), SizeBytes: int64(c.Size),
		CreationTime: timestamppb.New(at), ReadyToUse: c.Lost == "", GroupSnapshotId: c.SnapshotGroup,
	}, nil
}
