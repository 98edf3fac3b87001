package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/yaml"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// undeleteOptions returns the checked options of a call with some flags set.
func undeleteOptions(t *testing.T, set func(*volumesUndeleteOptions)) *volumesUndeleteOptions {
	t.Helper()
	o := &volumesUndeleteOptions{objectsOptions: objectsOptions{node: "node-1", policy: policyRetain}}
	if set != nil {
		set(o)
	}
	require.NoError(t, o.check())
	return o
}

// parsed returns the objects of some manifests. An unknown field is an error.
func parsed(t *testing.T, text string) (corev1.PersistentVolume, corev1.PersistentVolumeClaim) {
	t.Helper()
	documents := strings.Split(text, "---\n")
	require.Len(t, documents, 3)
	require.Empty(t, documents[0])
	var (
		volume corev1.PersistentVolume
		claim  corev1.PersistentVolumeClaim
	)
	require.NoError(t, yaml.UnmarshalStrict([]byte(documents[1]), &volume))
	require.NoError(t, yaml.UnmarshalStrict([]byte(documents[2]), &claim))
	require.Equal(t, "PersistentVolume", volume.Kind)
	require.Equal(t, "PersistentVolumeClaim", claim.Kind)
	return volume, claim
}

func TestManifests(t *testing.T) {
	longNode := strings.Repeat("n", 60) + ".example.org"
	for file, c := range map[string]struct {
		volume inventory.Volume
		set    func(*volumesUndeleteOptions)
	}{
		"undelete.yaml": {released(), nil},
		"undelete-striped.yaml": {changed(func(v *inventory.Volume) {
			v.Shape = volume.Shape{Layout: volume.Striped, Stripes: 3, StripeKiB: 256}
		}), nil},
		"undelete-raid1.yaml": {changed(func(v *inventory.Volume) {
			v.Shape = volume.Shape{Layout: volume.Raid1, Mirrors: 2}
		}), nil},
		"undelete-thin.yaml": {changed(func(v *inventory.Volume) {
			v.Shape = volume.Shape{Layout: volume.Thin, ThinPool: "thinpool"}
			v.Allocated, v.AllocatedWhenFull = 70*volume.MiB, v.Allocated
		}), nil},
		"undelete-overprovisioned.yaml": {changed(func(v *inventory.Volume) {
			v.Shape = volume.Shape{Layout: volume.Thin, ThinPool: "thinpool"}
		}), func(o *volumesUndeleteOptions) { o.ratio = "1.5" }},
		"undelete-csi.yaml": {released(), func(o *volumesUndeleteOptions) { o.door = "csi" }},
		"undelete-flags.yaml": {
			changed(func(v *inventory.Volume) {
				v.Group, v.Size, v.Cluster, v.State = "fast", 1000001536, "", volume.Retained
				v.Reclaim = volume.ReclaimImmediate
			}),
			func(o *volumesUndeleteOptions) {
				o.node, o.hostname, o.claim, o.storageClass, o.policy = longNode, "node-1_lab", "data-web-0", "flexlvm", policyDelete
			},
		},
	} {
		t.Run(file, func(t *testing.T) {
			o := undeleteOptions(t, c.set)
			got, err := o.manifests(c.volume)
			require.NoError(t, err)
			want, err := os.ReadFile("testdata/" + file)
			require.NoError(t, err)
			require.Equal(t, string(want), got)

			restored, claim := parsed(t, got)
			checkVolume(t, restored, c.volume, o)
			checkClaim(t, claim, restored)
		})
	}
}

// checkVolume compares a PersistentVolume with its volume in the fields that the node daemon and the
// driver use.
func checkVolume(t *testing.T, got corev1.PersistentVolume, v inventory.Volume, o *volumesUndeleteOptions) {
	t.Helper()
	require.Equal(t, string(v.Name), got.Name)
	require.Equal(t, map[string]string{"flexlvm.io/node": pv.NodeLabelValue(o.node)}, got.Labels)
	require.Equal(t, []string{"flexlvm.io/volume"}, got.Finalizers)
	charged := o.parsedRatio.Of(max(v.Allocated, v.AllocatedWhenFull))
	annotations := map[string]string{
		"pv.kubernetes.io/provisioned-by": "flexlvm.io",
		"flexlvm.io/charged-bytes":        strconv.FormatInt(int64(charged), 10),
		"flexlvm.io/reclaim":              string(v.Reclaim),
		"flexlvm.io/wipe":                 string(v.Wipe),
		"flexlvm.io/on-node-loss":         "keep",
	}
	if o.ratio != "" {
		annotations["flexlvm.io/overprovision-ratio"] = o.ratio
	}
	require.Equal(t, annotations, got.Annotations)
	capacity := got.Spec.Capacity[corev1.ResourceStorage]
	require.Zero(t, capacity.Cmp(*resource.NewQuantity(int64(v.Size), resource.BinarySI)), capacity.String())
	require.Equal(t, string(o.policy), string(got.Spec.PersistentVolumeReclaimPolicy))
	require.Equal(t, o.storageClass, got.Spec.StorageClassName)
	require.Equal(t, v.Namespace, got.Spec.ClaimRef.Namespace)
	require.Equal(t, corev1.PersistentVolumeFilesystem, *got.Spec.VolumeMode)
	require.Equal(t, []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
		{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{o.hostname}},
	}}}, got.Spec.NodeAffinity.Required.NodeSelectorTerms)
	spec := volume.Spec{
		Group: v.Group, GroupUUID: v.GroupUUID, Name: v.Name, Size: v.Size, Kind: v.Kind, Cluster: v.Cluster,
		Layout: cmp.Or(v.Layout, volume.Linear), Stripes: v.Stripes, StripeKiB: v.StripeKiB, Mirrors: v.Mirrors, ThinPool: v.ThinPool, Ratio: o.parsedRatio,
	}
	if o.door == "csi" {
		require.Equal(t, &corev1.CSIPersistentVolumeSource{
			Driver: "flexlvm.io", FSType: "xfs", VolumeHandle: string(v.Group) + "/" + string(v.Name), VolumeAttributes: pv.Attributes(spec.Options(), v.Namespace),
		}, got.Spec.CSI)
	} else {
		require.Equal(t, &corev1.FlexPersistentVolumeSource{Driver: "flexlvm.io/flexlvm", FSType: "xfs", Options: spec.Options()}, got.Spec.FlexVolume)
	}

	claim, err := persistentvolume.Parse(&got)
	require.NoError(t, err)
	require.True(t, claim.HasFinalizer)
	require.False(t, claim.Deleting)
	require.Equal(t, v.Group, claim.Group)
	require.Equal(t, v.Name, claim.Volume)
	require.Equal(t, v.Cluster, claim.Cluster)
	require.Equal(t, spec.Shape(), claim.Shape)
	require.Equal(t, v.Size, claim.Size)
	require.Equal(t, charged, claim.Charged)
	require.Equal(t, volume.Disposal{Reclaim: v.Reclaim, Wipe: v.Wipe}, claim.Disposal)
}

// checkClaim checks that a claim and a PersistentVolume bind to each other.
func checkClaim(t *testing.T, claim corev1.PersistentVolumeClaim, volume corev1.PersistentVolume) {
	t.Helper()
	require.Equal(t, volume.Spec.ClaimRef.Namespace, claim.Namespace)
	require.Equal(t, volume.Spec.ClaimRef.Name, claim.Name)
	require.Empty(t, volume.Spec.ClaimRef.UID, "a UID would be that of the claim that is gone")
	require.Equal(t, volume.Name, claim.Spec.VolumeName)
	require.NotNil(t, claim.Spec.StorageClassName, "without, the default class would be put in")
	require.Equal(t, volume.Spec.StorageClassName, *claim.Spec.StorageClassName)
	require.Equal(t, volume.Spec.AccessModes, claim.Spec.AccessModes)
	require.Equal(t, volume.Spec.VolumeMode, claim.Spec.VolumeMode)
	require.Equal(t, volume.Spec.Capacity[corev1.ResourceStorage], claim.Spec.Resources.Requests[corev1.ResourceStorage])
}

func TestOverprovisionRatioOfUndelete(t *testing.T) {
	o := &volumesUndeleteOptions{objectsOptions: objectsOptions{node: "node-1"}, ratio: "0.5"}
	require.ErrorContains(t, o.check(), `--overprovision-ratio "0.5": is less than 1`)
	o = undeleteOptions(t, func(o *volumesUndeleteOptions) { o.ratio = "2" })
	_, err := o.manifests(released())
	require.ErrorContains(t, err, `--overprovision-ratio "2": applies only to volumes in thin pools`)
}

func TestUndelete(t *testing.T) {
	for name, c := range map[string]struct {
		volume inventory.Volume
		set    func(*volumesUndeleteOptions)
		err    string // empty: the undelete succeeds
		moves  []string
	}{
		"unreferenced":      {volume: released(), moves: []string{"flexlvm/pvc-3 ready"}},
		"retained":          {volume: changed(func(v *inventory.Volume) { v.State = volume.Retained }), moves: []string{"flexlvm/pvc-3 ready"}},
		"dry run":           {volume: released(), set: dryRun},
		"ready, to look at": {volume: changed(func(v *inventory.Volume) { v.State = volume.Ready }), set: dryRun},

		"ready":               {volume: changed(func(v *inventory.Volume) { v.State = volume.Ready }), err: "Check `kubectl get pv pvc-3`"},
		"creating":            {volume: changed(func(v *inventory.Volume) { v.State = volume.Creating }), set: dryRun, err: "is in state creating"},
		"half a copy":         {volume: changed(func(v *inventory.Volume) { v.CloneOfFS = "a" }), err: "Create a new claim for the copy"},
		"partly zeroed":       {volume: changed(func(v *inventory.Volume) { v.PartlyZeroed = true }), err: "Create a new claim"},
		"half a copy, shown":  {volume: changed(func(v *inventory.Volume) { v.CloneOfFS = "a" }), set: dryRun, err: "is an unfinished copy"},
		"a copy being made":   {volume: changed(func(v *inventory.Volume) { v.State, v.CloneOfFS = volume.Creating, "a" }), set: dryRun, err: "is in state creating"},
		"doomed":              {volume: changed(func(v *inventory.Volume) { v.State, v.Name = volume.Doomed, "doomed_pvc-3" }), err: "cannot be undone"},
		"doomed, a dry run":   {volume: changed(func(v *inventory.Volume) { v.State, v.Name = volume.Doomed, "doomed_pvc-3" }), set: dryRun, err: "cannot be undone"},
		"nonsense":            {volume: changed(func(v *inventory.Volume) { v.State, v.Problem = "", "two states" }), err: "lvchange"},
		"dataset":             {volume: changed(func(v *inventory.Volume) { v.Kind = volume.Dataset }), set: dryRun, err: "VolumeManager"},
		"absent":              {volume: changed(func(v *inventory.Volume) { v.Name = "pvc-4" }), err: "no flexlvm volume"},
		"another group":       {volume: released(), set: func(o *volumesUndeleteOptions) { o.group = "fast" }, err: "no flexlvm volume"},
		"names too long":      {volume: changed(func(v *inventory.Volume) { v.Group = volume.Group(strings.Repeat("g", 120)) }), err: "too long together"},
		"no size in the tags": {volume: changed(func(v *inventory.Volume) { v.Size = 0 }), err: "size"},
	} {
		t.Run(name, func(t *testing.T) {
			e := &fakeEngine{volumes: []inventory.Volume{c.volume}}
			o := undeleteOptions(t, c.set)
			var out, notes bytes.Buffer
			err := o.undelete(context.Background(), e, "pvc-3", &out, &notes)
			require.Equal(t, c.moves, e.moves)
			if c.err != "" {
				require.ErrorContains(t, err, c.err)
				require.Empty(t, out.String(), "kubectl must get nothing")
				return
			}
			require.NoError(t, err)
			restored, _ := parsed(t, out.String())
			require.Equal(t, "pvc-3", restored.Name)
			require.Equal(t, !o.dryRun, strings.Contains(notes.String(), "is ready again"), notes.String())
		})
	}
}

func dryRun(o *volumesUndeleteOptions) { o.dryRun = true }

func TestUndeleteOfNamesOfOthers(t *testing.T) {
	e := &fakeEngine{volumes: []inventory.Volume{changed(func(v *inventory.Volume) { v.Name = "My_Data" })}}
	err := undeleteOptions(t, nil).undelete(context.Background(), e, "My_Data", &bytes.Buffer{}, &bytes.Buffer{})
	require.ErrorContains(t, err, "lvrename flexlvm My_Data NEW")
	require.Empty(t, e.moves)
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errors.New("no space left") }

func TestUndeleteThatFails(t *testing.T) {
	e := &fakeEngine{volumes: []inventory.Volume{released()}, err: errors.New("LVM is locked")}
	var out bytes.Buffer
	require.ErrorContains(t, undeleteOptions(t, nil).undelete(context.Background(), e, "pvc-3", &out, &out), "LVM is locked")
	require.Empty(t, out.String(), "kubectl must not apply what was not brought back")

	e = &fakeEngine{volumes: []inventory.Volume{released()}}
	err := undeleteOptions(t, nil).undelete(context.Background(), e, "pvc-3", fullDisk{}, &out)
	require.ErrorContains(t, err, "print them again with --dry-run")
}

func TestUndeleteTellsWhatItGuessed(t *testing.T) {
	for claim, says := range map[string]bool{"": true, "data": false} {
		e := &fakeEngine{volumes: []inventory.Volume{released()}}
		o := undeleteOptions(t, func(o *volumesUndeleteOptions) { o.claim = claim })
		var notes bytes.Buffer
		require.NoError(t, o.undelete(context.Background(), e, "pvc-3", &bytes.Buffer{}, &notes))
		require.Equal(t, says, strings.Contains(notes.String(), "the claim is called shop/pvc-3"), notes.String())
	}
}

// With --no-manifests a volume whose PersistentVolume exists becomes ready, whatever flags its manifests would require.
func TestUndeleteWithoutManifests(t *testing.T) {
	for name, change := range map[string]func(*inventory.Volume){
		"plain":     func(*inventory.Volume) {},
		"encrypted": func(v *inventory.Volume) { v.Encrypted = true },
		"raw":       func(v *inventory.Volume) { v.FSType = volume.Raw },
		"replica":   func(v *inventory.Volume) { v.Kind = volume.Dataset },
	} {
		e := &fakeEngine{volumes: []inventory.Volume{changed(change)}}
		var out, notes bytes.Buffer
		o := undeleteOptions(t, func(o *volumesUndeleteOptions) { o.noManifests = true })
		require.NoError(t, o.undelete(context.Background(), e, "pvc-3", &out, &notes), name)
		require.Equal(t, []string{"flexlvm/pvc-3 ready"}, e.moves, name)
		require.Empty(t, out.String())
		require.Contains(t, notes.String(), "is ready again (it was unreferenced)")
	}
	for says, change := range map[string]func(*inventory.Volume){
		"unfinished copy":  func(v *inventory.Volume) { v.CloneOfFS = "x" },
		"cannot be undone": func(v *inventory.Volume) { v.State, v.Name = volume.Doomed, "doomed_pvc-3" },
		"is a snapshot":    func(v *inventory.Volume) { v.Kind = volume.Snapshot },
	} {
		e := &fakeEngine{volumes: []inventory.Volume{changed(change)}}
		o := undeleteOptions(t, func(o *volumesUndeleteOptions) { o.noManifests = true })
		require.ErrorContains(t, o.undelete(context.Background(), e, "pvc-3", &bytes.Buffer{}, &bytes.Buffer{}), says)
		require.Empty(t, e.moves)
	}
}
