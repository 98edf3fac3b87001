//go:build cluster

package provisioner_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	v1 "github.com/flexlvm/flexlvm/api/v1"
)

// declared returns a VolumeGroup with the spec.
func declared(spec map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1.GroupVersion.String(), "kind": "VolumeGroup", "metadata": map[string]any{"name": "declared"}, "spec": spec,
	}}
}

// goodSpec returns the spec of a valid VolumeGroup with a change.
func goodSpec(change func(map[string]any)) map[string]any {
	spec := map[string]any{
		"name":         "flexlvm",
		"nodeSelector": map[string]any{"matchLabels": map[string]any{"no": "node"}},
		"disks":        []any{map[string]any{"path": "/dev/sd*", "minSize": "900G", "maxSize": "2Ti", "rotational": false}},
	}
	change(spec)
	return spec
}

// disk returns a change to one disk selector, given as pairs.
func disk(pairs ...any) func(map[string]any) {
	selector := map[string]any{}
	for i := 0; i < len(pairs); i += 2 {
		selector[pairs[i].(string)] = pairs[i+1]
	}
	return func(spec map[string]any) { spec["disks"] = []any{selector} }
}

// testVolumeGroups: the API server refuses a declaration that would match any disk, and a change that
// cannot be carried out.
func (b *bed) testVolumeGroups(t *testing.T) {
	client, err := dynamic.NewForConfig(b.config)
	require.NoError(t, err)
	groups := client.Resource(v1.GroupVersion.WithResource("volumegroups"))
	set := func(field string, value any) func(map[string]any) {
		return func(spec map[string]any) { spec[field] = value }
	}
	for name, c := range map[string]struct {
		change func(map[string]any)
		says   string // empty: it is accepted
	}{
		"as it is":                 {func(map[string]any) {}, ""},
		"expressions":              {set("nodeSelector", map[string]any{"matchExpressions": []any{map[string]any{"key": "no", "operator": "Exists"}}}), ""},
		"a thin pool":              {set("thinPool", map[string]any{"size": "10Gi"}), ""},
		"an ID":                    {disk("byID", "nvme-Samsung_SSD_980*"), ""},
		"a WWN":                    {disk("byID", "naa.5000c500a1b2c3d4"), ""},
		"a short serial number":    {disk("byID", "serial-d1"), ""},
		"a path on the bus":        {disk("path", "/dev/disk/by-path/pci-0000:00:1f.2-ata-?"), ""},
		"no nodes":                 {func(spec map[string]any) { delete(spec, "nodeSelector") }, "nodeSelector: Required"},
		"every node":               {set("nodeSelector", map[string]any{}), "would match every node"},
		"every node, empty labels": {set("nodeSelector", map[string]any{"matchLabels": map[string]any{}}), "would match every node"},
		"no disks":                 {set("disks", []any{}), "at least 1 items"},
		"a size alone":             {disk("minSize", "1G"), "byID or path is needed"},
		"any path":                 {disk("path", "/dev/*"), "should match"},
		"any path of one letter":   {disk("path", "/dev/s*"), "should match"},
		"any path by class":        {disk("path", "/dev/[a-z]*"), "should match"},
		"any path by ID":           {disk("path", "/dev/disk/by-id/*"), "should match"},
		"any path below":           {disk("path", "/dev/disk/*/*"), "should match"},
		"any ID":                   {disk("byID", "*"), "should match"},
		"any ID of a kind":         {disk("byID", "wwn-*"), "should match"},
		"any WWN":                  {disk("byID", "wwn-0x*"), "should match"},
		"a path elsewhere":         {disk("path", "/tmp/disk"), "should match"},
		"min over max":             {disk("path", "/dev/sd*", "minSize", "2Ti", "maxSize", "1Ti"), "minSize is more than maxSize"},
		"no size":                  {disk("path", "/dev/sd*", "minSize", "large"), "has to be a quantity"},
		"a size below zero":        {disk("path", "/dev/sd*", "maxSize", "-1"), "has to be a quantity"},
		"a name that LVM refuses":  {set("name", "-x"), "should match"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := groups.Create(t.Context(), declared(goodSpec(c.change)), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}, FieldValidation: metav1.FieldValidationStrict})
			if c.says == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, c.says)
		})
	}

	made, err := groups.Create(t.Context(), declared(goodSpec(set("thinPool", map[string]any{}))), metav1.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, groups.Delete(context.WithoutCancel(t.Context()), "declared", metav1.DeleteOptions{}))
	})
	pool, _, _ := unstructured.NestedString(made.Object, "spec", "thinPool", "name")
	require.Equal(t, "thinpool", pool)
	for says, change := range map[string]func(map[string]any){
		"name cannot be changed":      set("name", "other"),
		"thinPool cannot be changed":  func(spec map[string]any) { delete(spec, "thinPool") },
		"thinPool cannot be changed;": set("thinPool", map[string]any{"name": "other"}),
		"":                            set("extend", true),
	} {
		next := made.DeepCopy()
		change(next.Object["spec"].(map[string]any))
		_, err := groups.Update(t.Context(), next, metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}})
		if says == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorContains(t, err, says)
	}
}
