//go:build cluster

package provisioner_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/test/await"
)

// workloads are all kinds that contain a pod, with %s for its volumes.
var workloads = map[string]string{
	"Pod": `{apiVersion: v1, kind: Pod, metadata: {name: x}, spec: {containers: [{name: c, image: i}], volumes: %s}}`,
	"Deployment": `{apiVersion: apps/v1, kind: Deployment, metadata: {name: x}, spec: {replicas: 0, selector: {matchLabels: {a: b}},
		template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}], volumes: %s}}}}`,
	"ReplicaSet": `{apiVersion: apps/v1, kind: ReplicaSet, metadata: {name: x}, spec: {replicas: 0, selector: {matchLabels: {a: b}},
		template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}], volumes: %s}}}}`,
	"DaemonSet": `{apiVersion: apps/v1, kind: DaemonSet, metadata: {name: x}, spec: {selector: {matchLabels: {a: b}},
		template: {metadata: {labels: {a: b}}, spec: {nodeSelector: {none: here}, containers: [{name: c, image: i}], volumes: %s}}}}`,
	"StatefulSet": `{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: x}, spec: {replicas: 0, serviceName: x, selector: {matchLabels: {a: b}},
		template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}], volumes: %s}}}}`,
	"ReplicationController": `{apiVersion: v1, kind: ReplicationController, metadata: {name: x}, spec: {replicas: 0, selector: {a: b},
		template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}], volumes: %s}}}}`,
	"PodTemplate": `{apiVersion: v1, kind: PodTemplate, metadata: {name: x},
		template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}], volumes: %s}}}`,
	"Job": `{apiVersion: batch/v1, kind: Job, metadata: {name: x}, spec: {suspend: true,
		template: {spec: {restartPolicy: Never, containers: [{name: c, image: i}], volumes: %s}}}}`,
	"CronJob": `{apiVersion: batch/v1, kind: CronJob, metadata: {name: x}, spec: {suspend: true, schedule: "0 0 1 1 *", jobTemplate: {spec:
		{template: {spec: {restartPolicy: Never, containers: [{name: c, image: i}], volumes: %s}}}}}}`,
}

const (
	harmless = `[{name: ok, emptyDir: {}}, {name: other, flexVolume: {driver: example.org/other}}]`
	inline   = `[{name: ok, emptyDir: {}}, {name: mine, flexVolume: {driver: flexlvm.io/flexlvm, options: {size: "1"}}}]`
)

// immutable are the kinds whose volumes cannot change, so that no update can add one.
var immutable = map[string]bool{"Pod": true, "Job": true}

func (b *bed) testInline(t *testing.T) {
	s := b.namespace(t, "inline")
	in := func(manifest, volumes string) string {
		return strings.Replace(fmt.Sprintf(manifest, volumes), "metadata: {name: x}", "metadata: {name: x, namespace: inline}", 1)
	}
	refused := func(t *testing.T, err error) {
		t.Helper()
		require.ErrorContains(t, err, `volume "mine" uses the FlexVolume driver flexlvm.io/flexlvm inline, which is not allowed`)
		require.ErrorContains(t, err, "create a PersistentVolumeClaim")
	}
	for kind, manifest := range workloads {
		t.Run(kind, func(t *testing.T) {
			refused(t, b.apply(t, in(manifest, inline)))
			require.NoError(t, b.apply(t, in(manifest, harmless)))
			if !immutable[kind] {
				refused(t, b.apply(t, in(manifest, inline)))
			}
			s.remove(t, kind)
		})
	}
	for _, kind := range []string{"Pod", "Deployment"} {
		err := b.apply(t, in(workloads[kind], `[{name: mine, csi: {driver: flexlvm.io}}]`))
		require.ErrorContains(t, err, `volume "mine" uses the CSI driver flexlvm.io inline, which is not allowed`)
		require.NoError(t, b.apply(t, in(workloads[kind], `[{name: other, csi: {driver: example.org}}]`)))
		s.remove(t, kind)
	}

	// An object that is older than the policy can still be updated, and so finished and cleaned up, but
	// not with another volume.
	b.kubectl(t, "delete", "validatingadmissionpolicybinding", "inline.flexlvm.io")
	for kind, manifest := range workloads {
		await.Until(t, longest, func() string { // admission observes the change after a moment
			if err := b.apply(t, in(manifest, inline)); err != nil {
				return err.Error()
			}
			return ""
		})
		require.NotEmpty(t, kind)
	}
	b.kubectl(t, "apply", "-k", b.source+"/installer")
	await.Until(t, longest, func() string {
		fresh := strings.Replace(in(workloads["Pod"], inline), "name: x", "name: fresh", 1)
		err := b.apply(t, fresh, "--dry-run=server")
		return await.Missing(err != nil && strings.Contains(err.Error(), `volume "mine"`), "the policy is not in force again: %v", err)
	})
	for kind, manifest := range workloads {
		t.Run("older "+kind, func(t *testing.T) {
			b.kubectl(t, "label", "-n", "inline", kind, "x", "touched=yes")
			if !immutable[kind] {
				refused(t, b.apply(t, in(manifest, strings.Replace(inline, `size: "1"`, `size: "2"`, 1))))
			}
			s.remove(t, kind)
		})
	}
}

func (s *space) remove(t *testing.T, kind string) {
	t.Helper()
	s.kubectl(t, "delete", "-n", s.name, kind, "x", "--force", "--grace-period=0")
}
