package main

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/node"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/volume"
)

const kubeSystem = "7f3c9a52-3b0a-4c58-9f3e-1f0b7f6f2a11"

func adoptOptions() *volumesAdoptOptions {
	return &volumesAdoptOptions{
		objectsOptions: objectsOptions{node: "node-1", claim: "pages", storageClass: "flexlvm", policy: policyRetain},
		namespace:      "shop", cluster: kubeSystem,
	}
}

func TestAdoption(t *testing.T) {
	o := adoptOptions()
	o.size = "512MiB"
	want := node.Adoption{Group: "data", Name: "wiki", Namespace: "shop", Cluster: kubeSystem, Size: 512 * volume.MiB}
	for _, path := range []string{"data/wiki", "/dev/data/wiki"} {
		a, err := o.adoption(path)
		require.NoError(t, err)
		require.Equal(t, want, a)
	}
	for says, wrong := range map[string]func(o *volumesAdoptOptions, path *string){
		`GROUP/NAME "wiki": has no volume group`:   func(_ *volumesAdoptOptions, path *string) { *path = "wiki" },
		`GROUP "-a": begins with a hyphen`:         func(_ *volumesAdoptOptions, path *string) { *path = "-a/wiki" },
		`NAME "a/b": holds '/'`:                    func(_ *volumesAdoptOptions, path *string) { *path = "data/a/b" },
		`NAME "snapshot0": begins with "snapshot"`: func(_ *volumesAdoptOptions, path *string) { *path = "data/snapshot0" },
		`--namespace: is not the name`:             func(o *volumesAdoptOptions, _ *string) { o.namespace = "" },
		`--cluster: is not a UID`:                  func(o *volumesAdoptOptions, _ *string) { o.cluster = "" },
		`--size "0": must be greater than 0`:       func(o *volumesAdoptOptions, _ *string) { o.size = "0" },
		`--size "much": is not a size`:             func(o *volumesAdoptOptions, _ *string) { o.size = "much" },
		`--claim "A_B"`:                            func(o *volumesAdoptOptions, _ *string) { o.claim = "A_B" },
		`--door "window"`:                          func(o *volumesAdoptOptions, _ *string) { o.door = "window" },
		`--node "Node 1"`:                          func(o *volumesAdoptOptions, _ *string) { o.node = "Node 1" },
		`--storage-class "Fast"`:                   func(o *volumesAdoptOptions, _ *string) { o.storageClass = "Fast" },
		`--hostname "a/b"`:                         func(o *volumesAdoptOptions, _ *string) { o.hostname = "a/b" },
	} {
		o, path := adoptOptions(), "data/wiki"
		wrong(o, &path)
		_, err := o.adoption(path)
		require.ErrorContains(t, err, says)
	}
}

func TestAdopt(t *testing.T) {
	o, e := adoptOptions(), &fakeEngine{}
	a, err := o.adoption("flexlvm/wiki")
	require.NoError(t, err)
	var out, notes bytes.Buffer
	o.dryRun = true
	require.NoError(t, o.adopt(context.Background(), e, a, &out, &notes))
	require.Empty(t, e.moves)
	require.Contains(t, notes.String(), "flexlvm/wiki is not adopted")
	planned, _ := parsed(t, out.String())
	asked, err := persistentvolume.Parse(&planned)
	require.NoError(t, err)
	require.False(t, asked.Undelete, "applied by mistake, it must not bring back what was never adopted")

	o.dryRun = false
	out.Reset()
	notes.Reset()
	require.NoError(t, o.adopt(context.Background(), e, a, &out, &notes))
	require.Equal(t, []string{"flexlvm/wiki adopted"}, e.moves)
	require.Contains(t, notes.String(), "flexlvm/wiki is adopted, and retained until its PersistentVolume exists")
	made, claim := parsed(t, out.String())
	checkClaim(t, claim, made)
	require.Equal(t, "shop/pages", claim.Namespace+"/"+claim.Name)
	read, err := persistentvolume.Parse(&made)
	require.NoError(t, err)
	require.True(t, read.Undelete, "the node daemon makes it ready once its PersistentVolume is there")
	require.Equal(t, 1000*volume.MiB, read.Size, "what the volume has, not what was planned")
	require.Equal(t, corev1.PersistentVolumeReclaimRetain, made.Spec.PersistentVolumeReclaimPolicy)
}

func TestAdoptThatFails(t *testing.T) {
	o := adoptOptions()
	a, err := o.adoption("flexlvm/wiki")
	require.NoError(t, err)
	var out bytes.Buffer
	e := &fakeEngine{err: errors.New("it is mounted on /srv")}
	require.ErrorContains(t, o.adopt(context.Background(), e, a, &out, &out), "it is mounted on /srv")
	require.Empty(t, e.moves)
	require.ErrorContains(t, o.adopt(context.Background(), badName{}, a, &out, &out), "lvrename flexlvm My_Wiki NEW")
	require.Empty(t, out.String(), "kubectl must get nothing")
}

// badName plans the adoption of a volume whose name no PersistentVolume can have. It must never be
// adopted.
type badName struct{ adopter }

func (badName) PlanAdoption(context.Context, node.Adoption) (inventory.Volume, error) {
	v := adopted(volume.GiB)
	v.Name = "My_Wiki"
	return v, nil
}

func TestDisown(t *testing.T) {
	o, e := &volumesDisownOptions{}, &fakeEngine{volumes: []inventory.Volume{adopted(volume.GiB)}}
	var out bytes.Buffer
	require.NoError(t, o.disown(context.Background(), e, "wiki", &out))
	require.Equal(t, []string{"flexlvm/wiki disowned"}, e.moves)
	require.Contains(t, out.String(), "flexlvm/wiki is not a flexlvm volume any more")
	require.ErrorContains(t, o.disown(context.Background(), e, "other", &out), `no flexlvm volume is called "other"`)
	e.err = errors.New("its device is open")
	require.ErrorContains(t, o.disown(context.Background(), e, "wiki", &out), "its device is open")
}
