package provision_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	storagev1 "k8s.io/api/storage/v1"
	"sigs.k8s.io/yaml"

	"github.com/flexlvm/flexlvm/internal/provision"
	"github.com/flexlvm/flexlvm/internal/pv"
)

var (
	codeSpan  = regexp.MustCompile("`([^`]+)`")
	parameted = regexp.MustCompile(`^([A-Za-z./-]+):( .+)?$`)
)

// docs/from-others.md has a replacement or a remark for each item, and names only parameters, fields and flags that
// exist.
func TestWhatOthersHaveIsHere(t *testing.T) {
	root := filepath.Join("..", "..")
	page := read(t, root, "docs", "from-others.md")
	fields := []string{"provisioner", "volumeBindingMode", "reclaimPolicy", "allowVolumeExpansion", "volumeMode"}
	known := append(strings.Split(known, ", "), fields...)
	flags := sources(t, root)
	rows := 0
	for line := range strings.Lines(page) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if !strings.HasPrefix(line, "| ") || strings.HasSuffix(strings.TrimSpace(cells[2]), "here") && !strings.Contains(line, "`") {
			continue
		}
		rows++
		require.Len(t, cells, 4, line)
		here := strings.TrimSpace(cells[2])
		require.NotEmpty(t, here, line)
		for _, span := range codeSpan.FindAllStringSubmatch(here, -1) {
			if m := parameted.FindStringSubmatch(span[1]); m != nil && m[2] != "" {
				require.Contains(t, known, m[1], line)
			}
			if flag, is := strings.CutPrefix(span[1], "--"); is {
				require.Contains(t, flags, `"`+flag+`"`, line)
			}
		}
	}
	require.Greater(t, rows, 80)
}

// sources returns the sources of the programs and of their shared flags.
func sources(t *testing.T, root string) string {
	t.Helper()
	var all strings.Builder
	for _, pattern := range []string{"cmd/*/*.go", "internal/serve/*.go"} {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		require.NoError(t, err)
		require.NotEmpty(t, files)
		for _, file := range files {
			if !strings.HasSuffix(file, "_test.go") {
				all.WriteString(read(t, file))
			}
		}
	}
	return all.String()
}

func read(t *testing.T, path ...string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(path...))
	require.NoError(t, err)
	return string(content)
}

// The page links to each example. The classes of the examples are valid: flexlvm's, and those for existing volumes.
func TestExamplesForUsersOfOthers(t *testing.T) {
	root := filepath.Join("..", "..")
	page := read(t, root, "docs", "from-others.md")
	files, err := filepath.Glob(filepath.Join(root, "examples", "from-others", "*.yaml"))
	require.NoError(t, err)
	var linked []string
	for _, m := range regexp.MustCompile(`\]\(\.\./examples/from-others/([a-z0-9-]+\.yaml)\)`).FindAllStringSubmatch(page, -1) {
		linked = append(linked, m[1])
	}
	slices.Sort(linked)
	var there []string
	for _, file := range files {
		there = append(there, filepath.Base(file))
		for _, document := range strings.Split(read(t, file), "---\n") {
			var class storagev1.StorageClass
			if err := yaml.Unmarshal([]byte(document), &class); err != nil || class.Kind != "StorageClass" {
				continue
			}
			require.Equal(t, storagev1.VolumeBindingWaitForFirstConsumer, *class.VolumeBindingMode, file)
			if filepath.Base(file) == "static-provisioner-config.yaml" {
				require.Equal(t, "kubernetes.io/no-provisioner", class.Provisioner)
				require.Empty(t, class.Parameters)
				continue
			}
			require.Equal(t, pv.Provisioner, class.Provisioner, file)
			_, err := provision.ParseParameters(class.Parameters)
			require.NoError(t, err, file)
		}
	}
	require.Equal(t, there, slices.Compact(linked))
}

// each lists the parameters, flags, variables, fields and metrics of each system, as named in its documents and
// sources at the version in docs/from-others.md.
var each = map[string]string{
	"TopoLVM": "provisioner topolvm.io/device-class topolvm.io/lvcreate-option-class csi.storage.k8s.io/fstype " +
		"name volume-group spare-gb default stripe stripe-size lvcreate-options thin-pool.name thin-pool.overprovision-ratio lvcreate-option-classes " +
		"config socket-name container lvm-command-prefix lvm-path csi-socket lvmd-socket embed-lvmd nodename NODE_NAME metrics-bind-address secure-metrics-server " +
		"health-probe-bind-address profiling-bind-address cert-dir webhook-addr enable-webhooks leader-election leader-election-id leader-election-namespace " +
		"leader-election-lease-duration leader-election-renew-deadline leader-election-retry-period skip-node-finalize listen default-divisor divisors " +
		"topolvm.io/node topolvm.io/pvc topolvm.io/resize-requested-at topolvm.io/last-resizefs-requested-at nodeName size deviceClass volumeID code message currentSize " +
		"topolvm_volumegroup_available_bytes topolvm_volumegroup_size_bytes topolvm_thinpool_size_bytes topolvm_thinpool_data_percent " +
		"topolvm_thinpool_metadata_percent topolvm_thinpool_overprovisioned_available",
	"csilvm": "-volume-group -devices -remove-volume-group -tag -default-fs -default-volume-size -node-id -unix-addr -unix-addr-env -probe-module " +
		"-lockfile CSILVM_LOCKFILE_PATH -request-limit -statsd-udp-host-env-var -statsd-udp-port-env-var -statsd-format -statsd-max-udp-size mirrors " +
		"csilvm_uptime csilvm_requests csilvm_volumes csilvm_bytes_total csilvm_bytes_free csilvm_bytes_used csilvm_pvs csilvm_missing_pvs " +
		"csilvm_unexpected_pvs csilvm_lookup_pv_errs",
	"Static provisioner for local volumes": "storageClassMap hostDir mountDir blockCleanerCommand volumeMode accessMode fsType namePattern selector " +
		"nodeLabelsForPV labelsForPV useAlphaAPI useJobForCleaning jobTolerations minResyncPeriod useNodeNameOnly setPVOwnerRef removeNodeNotReadyTaint " +
		"provisionerNotReadyNodeTaintKey --discovery-period --config-sync-period --listen-address --metrics-path /ready MY_NODE_NAME MY_NAMESPACE " +
		"JOB_CONTAINER_IMAGE KUBECONFIG --storageclass-names --pvc-deletion-delay --stale-pv-discovery-interval --resync --worker-threads --kubeconfig " +
		"--kube-api-endpoint allowedTopologies nodeLabels image imagePullPolicy imagePullSecrets podAnnotations podLabels priorityClassName nodeSelector " +
		"tolerations resources affinity updateStrategy serviceMonitor kubeConfigEnv rbac.create serviceAccount additionalVolumes additionalVolumeMounts " +
		"initContainers privileged hostPID mountDevVolume enableWindows",
	"MetalK8s": "nodeName storageClassName template.metadata template.spec lvmLogicalVolume.vgName lvmLogicalVolume.size rawBlockDevice.devicePath " +
		"sparseLoopDevice.size metalk8s.scality.com/force-lvcreate status.conditions status.job status.deviceName fsType mkfsOptions mountOptions",
	"localflex": "path affinity directory name monostream.com/path monostream.com/node NODE_NAME $HOME/.kube/config",
}

// Each item of a system is in the left column of a row in its section.
func TestEachParameterOfOthersHasARow(t *testing.T) {
	page := read(t, filepath.Join("..", ".."), "docs", "from-others.md")
	for system, names := range each {
		_, section, found := strings.Cut(page, "\n## "+system+"\n")
		require.True(t, found, system)
		section, _, _ = strings.Cut(section, "\n## ")
		var left []string
		for line := range strings.Lines(section) {
			if cells := strings.Split(line, "|"); len(cells) == 4 {
				for _, span := range codeSpan.FindAllStringSubmatch(cells[1], -1) {
					name, _, _ := strings.Cut(span[1], ": ")
					left = append(left, name)
				}
			}
		}
		for name := range strings.FieldsSeq(names) {
			require.Contains(t, left, name, system)
		}
	}
}
