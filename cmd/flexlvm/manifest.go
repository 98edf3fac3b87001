package main

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A manifest is what a PersistentVolume and its claim are written from, for a
// volume that has lost both.
type manifest struct {
	volume   inventory.Volume
	node     string
	hostname string // the value of the node's label kubernetes.io/hostname
	claim    string
	class    string // may be empty
	ratio    volume.Ratio
	policy   reclaimPolicy
}

// manifests are the objects as the provisioner would have written them. Every
// value is put in as a quoted string of printable ASCII, which is the same in YAML
// as it is in Go. It begins with a separator, so that the manifests of several
// volumes can be put one behind the other.
const manifests = `---
apiVersion: v1
kind: PersistentVolume
metadata:
  name: ${name}
  labels:
    ` + pv.LabelNode + `: ${node}
  annotations:
    ` + pv.AnnotationProvisionedBy + `: ` + pv.Provisioner + `
    ` + pv.AnnotationCharged + `: ${charged}
    ` + pv.AnnotationReclaim + `: ${reclaim}
    ` + pv.AnnotationWipe + `: ${wipe}
    ` + pv.AnnotationOnNodeLoss + `: ${onNodeLoss}
${ratio}  finalizers:
  - ` + pv.Finalizer + `
spec:
  capacity:
    storage: ${capacity}
  accessModes:
  - ReadWriteOnce
  volumeMode: Filesystem
  persistentVolumeReclaimPolicy: ${policy}
  storageClassName: ${class}
  claimRef:
    apiVersion: v1
    kind: PersistentVolumeClaim
    namespace: ${namespace}
    name: ${claim}
  nodeAffinity:
    required:
      nodeSelectorTerms:
      - matchExpressions:
        - key: kubernetes.io/hostname
          operator: In
          values:
          - ${hostname}
  flexVolume:
    driver: ` + pv.Driver + `
    fsType: ` + pv.FSType + `
    options:
${options}---
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  namespace: ${namespace}
  name: ${claim}
spec:
  accessModes:
  - ReadWriteOnce
  volumeMode: Filesystem
  volumeName: ${name}
  storageClassName: ${class}
  resources:
    requests:
      storage: ${capacity}
`

// yaml renders the manifests. It refuses what the API server or the driver would
// refuse: by then the volume has been brought back, and somebody waits for it.
func (m manifest) yaml() (string, error) {
	v := m.volume
	if _, err := pv.ParseObjectName("volume", string(v.Name)); err != nil {
		return "", fmt.Errorf("%w, so no PersistentVolume can bear it; give the volume such a name first (`lvrename %s %s NEW`)", err, v.Group, v.Name)
	}
	spec := volume.Spec{
		Group: v.Group, GroupUUID: v.GroupUUID, Name: v.Name, Size: v.Size, Kind: v.Kind, Cluster: v.Cluster, Namespace: v.Namespace,
		// Of a layout that is none of ours, linear is as good as any: what exists is
		// mounted as it is.
		Layout: cmp.Or(v.Layout, volume.Linear), Stripes: v.Stripes, StripeKiB: v.StripeKiB, Mirrors: v.Mirrors, ThinPool: v.ThinPool,
	}
	if err := spec.Validate(); err != nil {
		return "", fmt.Errorf("bring volume %s back: %w", where(v), err)
	}
	values := map[string]string{
		"name":       string(v.Name),
		"node":       pv.NodeLabelValue(m.node),
		"charged":    strconv.FormatInt(int64(m.ratio.Of(max(v.Device, v.Full))), 10),
		"reclaim":    string(cmp.Or(v.Reclaim, volume.ReclaimLazy)),
		"wipe":       string(cmp.Or(v.Wipe, volume.WipeNone)),
		"onNodeLoss": string(volume.OnNodeLossKeep),
		"capacity":   quantity(v.Size),
		"policy":     string(m.policy),
		"class":      m.class,
		"namespace":  v.Namespace,
		"claim":      m.claim,
		"hostname":   m.hostname,
	}
	return os.Expand(manifests, func(key string) string {
		switch {
		case key == "options":
			return optionLines(spec.Options())
		case key == "ratio" && m.ratio.Over():
			return fmt.Sprintf("    %s: %q\n", pv.AnnotationRatio, m.ratio)
		case key == "ratio":
			return ""
		}
		return strconv.QuoteToASCII(values[key])
	}), nil
}

func optionLines(options map[string]string) string {
	var b strings.Builder
	for _, key := range slices.Sorted(maps.Keys(options)) {
		fmt.Fprintf(&b, "      %s: %q\n", key, options[key])
	}
	return b.String()
}

// quantity is b as Kubernetes writes it: exact, and in the largest binary unit
// that leaves no fraction.
func quantity(b volume.Bytes) string {
	for _, u := range []struct {
		size volume.Bytes
		name string
	}{{volume.TiB, "Ti"}, {volume.GiB, "Gi"}, {volume.MiB, "Mi"}, {volume.KiB, "Ki"}} {
		if b%u.size == 0 {
			return strconv.FormatInt(int64(b/u.size), 10) + u.name
		}
	}
	return strconv.FormatInt(int64(b), 10)
}
