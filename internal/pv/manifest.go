package pv

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// A Manifest is a PersistentVolume and the claim that is bound to it.
type Manifest struct {
	Description
	Policy    string // the reclaim policy
	Class     string // may be empty
	Namespace string // of the claim
	Claim     string
	// Undelete has the node daemon make the volume ready once the PersistentVolume exists.
	Undelete bool
}

// Every value is substituted as a quoted string of printable ASCII, which is the same in YAML and in
// Go. The template begins with a separator, so that the manifests of several volumes can be
// concatenated.
const manifestTemplate = `---
apiVersion: v1
kind: PersistentVolume
metadata:
  name: ${name}
  labels:
${labels}  annotations:
    ` + AnnotationProvisionedBy + `: ` + Provisioner + `
${annotations}  finalizers:
  - ` + Finalizer + `
spec:
  capacity:
    storage: ${capacity}
  accessModes:
  - ReadWriteOnce
  volumeMode: ${mode}
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
${source}---
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  namespace: ${namespace}
  name: ${claim}
spec:
  accessModes:
  - ReadWriteOnce
  volumeMode: ${mode}
  volumeName: ${name}
  storageClassName: ${class}
  resources:
    requests:
      storage: ${capacity}
`

// The sources of both doors.
const (
	flexTemplate = `  flexVolume:
    driver: ` + Driver + `
    fsType: %s
    options:
`
	csiTemplate = `  csi:
    driver: ` + Provisioner + `
%s    volumeHandle: %s
%s    volumeAttributes:
`
)

// source returns the lines of the volume source.
func (m Manifest) source() string {
	const indent = "      "
	if m.Door == CSI {
		secrets := m.Secrets.Publish.lines("    ", "nodePublishSecretRef") + m.Secrets.Expand.lines("    ", "nodeExpandSecretRef")
		return fmt.Sprintf(csiTemplate, m.fsType(), strconv.QuoteToASCII(m.Handle()), secrets) + entries(indent, m.Attributes())
	}
	return fmt.Sprintf(flexTemplate, m.Spec.FSType) + entries(indent, m.Options())
}

// fsType returns the line for a CSI volume's file system.
func (m Manifest) fsType() string {
	if m.Spec.FSType == volume.Raw {
		return ""
	}
	return fmt.Sprintf("    fsType: %s\n", m.Spec.FSType)
}

// YAML returns the two objects as the provisioner and the user would have written them.
func (m Manifest) YAML() string {
	lines := map[string]string{
		"labels":      entries("    ", m.Labels()),
		"annotations": entries("    ", m.annotations()),
		"source":      m.source(),
		"mode":        m.Spec.FSType.VolumeMode(),
	}
	values := map[string]string{
		"name":      m.Name,
		"capacity":  quantity(m.Spec.Size),
		"policy":    m.Policy,
		"class":     m.Class,
		"namespace": m.Namespace,
		"claim":     m.Claim,
		"hostname":  m.Hostname,
	}
	return os.Expand(manifestTemplate, func(key string) string {
		if text, is := lines[key]; is {
			return text
		}
		return strconv.QuoteToASCII(values[key])
	})
}

func (m Manifest) annotations() map[string]string {
	out := m.Annotations()
	if m.Undelete {
		out[AnnotationUndelete] = m.Spec.FS
	}
	return out
}

func entries(indent string, values map[string]string) string {
	var b strings.Builder
	for _, key := range slices.Sorted(maps.Keys(values)) {
		fmt.Fprintf(&b, "%s%s: %s\n", indent, key, strconv.QuoteToASCII(values[key]))
	}
	return b.String()
}

// quantity formats b as Kubernetes does: exactly, in the largest binary unit that leaves no fraction.
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
