package main

import (
	"cmp"
	"fmt"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// manifest describes a PersistentVolume and its claim for a volume that has lost both.
// It refuses what the API server or the driver would refuse: by the time that they do,
// the volume has been brought back, and somebody waits for it.
func (o *volumesUndeleteOptions) manifest(v inventory.Volume) (pv.Manifest, error) {
	if _, err := pv.ParseObjectName("volume", string(v.Name)); err != nil {
		return pv.Manifest{}, fmt.Errorf("%w, so no PersistentVolume can carry it; give the volume such a name first (`lvrename %s %s NEW`)", err, v.Group, v.Name)
	}
	spec := volume.Spec{
		Group: v.Group, GroupUUID: v.GroupUUID, Name: v.Name, Size: v.Size, Kind: v.Kind, Cluster: v.Cluster, Namespace: v.Namespace,
		// Of a layout that is not flexlvm's, linear is as good as any: what exists is
		// mounted as it is.
		Layout: cmp.Or(v.Layout, volume.Linear), Stripes: v.Stripes, StripeKiB: v.StripeKiB, Mirrors: v.Mirrors, ThinPool: v.ThinPool,
		Ratio: o.parsedRatio,
	}
	if err := spec.Validate(); err != nil {
		return pv.Manifest{}, fmt.Errorf("bring volume %s back: %w", where(v), err)
	}
	return pv.Manifest{
		Description: pv.Description{
			Name: string(v.Name), Node: o.node, Hostname: o.hostname, Door: o.parsedDoor, Spec: spec,
			Charged:    o.parsedRatio.Of(max(v.Device, v.Full)),
			Disposal:   volume.Disposal{Reclaim: cmp.Or(v.Reclaim, volume.ReclaimLazy), Wipe: cmp.Or(v.Wipe, volume.WipeNone)},
			OnNodeLoss: volume.OnNodeLossKeep,
		},
		Policy: string(o.policy), Class: o.storageClass,
		Namespace: v.Namespace, Claim: cmp.Or(o.claim, string(v.Name)),
	}, nil
}
