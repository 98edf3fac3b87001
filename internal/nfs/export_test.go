package nfs

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/flexlvm/flexlvm/internal/controlplane"
	"github.com/flexlvm/flexlvm/internal/nfsmark"
	"github.com/flexlvm/flexlvm/internal/volume"
)

const pvName = "pvc-0d3f8f6e-6a0d-4e8f-b6a4-6bd5cb2b4a53"

func TestParseExport(t *testing.T) {
	tests := map[string]Export{
		"nfs.example.org:/srv/flexlvm=/exports/1": {Server: "nfs.example.org", Path: "/srv/flexlvm", Dir: "/exports/1"},
		"10.0.0.1:/=/mnt":                         {Server: "10.0.0.1", Path: "/", Dir: "/mnt"},
		"[fd00::1]:/a=b=/mnt":                     {Server: "fd00::1", Path: "/a=b", Dir: "/mnt"},
		"fd00::1:/srv=/mnt":                       {Server: "fd00::1", Path: "/srv", Dir: "/mnt"},
	}
	for given, want := range tests {
		got, err := ParseExport(given)
		require.NoError(t, err, given)
		require.Equal(t, want, got)
	}
	require.Equal(t, "[fd00::1]:/srv", Export{Server: "fd00::1", Path: "/srv"}.String())
	for _, bad := range []string{
		"", "a", "a:/b", "a:b=/c", "a:/b=c", ":/b=/c", "-o:/b=/c", "a b:/c=/d", "a:/b/=/c", "a:/b/../c=/d", "a:/b=/c/..",
		"a:/b\n=/c", "a:/b=/c//d", "a,b:/c=/d",
		"[fd00::1:/b=/c", "fd00::1]:/b=/c", "[:/b=/c", "[]:/b=/c", "[a]:/b=/c",
	} {
		_, err := ParseExport(bad)
		var field *volume.FieldError
		require.ErrorAs(t, err, &field, "%q", bad)
		require.Equal(t, "--export", field.Field)
	}
}

func TestParseExports(t *testing.T) {
	all, err := ParseExports([]string{"a:/x=/1", "a:/y=/2", "b:/x=/3"})
	require.NoError(t, err)
	require.Equal(t, "a:/x, a:/y, b:/x", all.String())
	for want, flags := range map[string][]string{
		"needed at least once": nil,
		"the same export":      {"a:/x=/1", "a:/x=/2"},
		"the same directory":   {"a:/x=/1", "b:/x=/1"},
	} {
		_, err := ParseExports(flags)
		require.ErrorContains(t, err, want)
	}
}

func TestDirectoryName(t *testing.T) {
	name, err := DirectoryName("team-a", "job-1.data", pvName)
	require.NoError(t, err)
	require.Equal(t, "team-a-job-1.data-"+pvName, name)
	require.NoError(t, nfsmark.CheckDirectory("spec.nfs.path", name, pvName))

	namespace, claim := strings.Repeat("n", 63), strings.Repeat("c", 134)+"."+strings.Repeat("d", 118)
	name, err = DirectoryName(namespace, claim, pvName)
	require.NoError(t, err)
	require.LessOrEqual(t, len(archivedPrefix+name), 255)
	require.LessOrEqual(t, len(doomedPrefix+name), 255)
	require.Equal(t, namespace+"-"+strings.Repeat("c", 134)+"-"+pvName, name, "cut at a dot")
	require.NoError(t, nfsmark.CheckDirectory("spec.nfs.path", name, pvName))

	for _, bad := range [][3]string{
		{"", "c", pvName}, {"..", "c", pvName}, {"a/b", "c", pvName}, {"a.b", "c", pvName}, {"N", "c", pvName},
		{"n", "", pvName}, {"n", "..", pvName}, {"n", "a/../b", pvName}, {"n", "a..b", pvName}, {"n", ".a", pvName},
		{"n", "c", ""}, {"n", "c", "pvc-1"}, {"n", "c", pvName + "/.."}, {"n", "c", "../" + pvName}, {"n", "c", pvName + "\n"},
	} {
		_, err := DirectoryName(bad[0], bad[1], bad[2])
		require.Error(t, err, "%q", bad)
	}
}

func exportsOf(t *testing.T, flags ...string) Exports {
	t.Helper()
	all, err := ParseExports(flags)
	require.NoError(t, err)
	return all
}

func volumeAt(server, path string) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: pvName},
		Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: corev1.PersistentVolumeSource{
			NFS: &corev1.NFSVolumeSource{Server: server, Path: path},
		}},
	}
}

func TestLocate(t *testing.T) {
	all := exportsOf(t, "a:/srv=/1", "a:/srv/deep=/2", "b:/=/3", "fd00::1:/srv=/4")
	for _, good := range []struct{ server, path, dir string }{
		{"a", "/srv/n-c-" + pvName, "/1"},
		{"a", "/srv/deep/n-c-" + pvName, "/2"},
		{"b", "/n-c-" + pvName, "/3"},
		{"fd00::1", "/srv/n-c-" + pvName, "/4"},
	} {
		at, err := all.locate(volumeAt(good.server, good.path))
		require.NoError(t, err)
		require.Equal(t, good.dir, at.export.Dir)
		require.Equal(t, "n-c-"+pvName, at.name)
		require.Contains(t, at.String(), good.path)
	}
	other := strings.Replace(pvName, "0d3f", "1d3f", 1)
	for _, bad := range []struct{ server, path string }{
		{"b", "/srv/n-c-" + pvName}, {"c", "/srv/n-c-" + pvName}, {"a", "/other/n-c-" + pvName},
		{"a", "/srv/sub/n-c-" + pvName}, {"a", "/srv"}, {"a", "/srv/"}, {"a", "/srv/.."}, {"a", ""},
		{"a", "/srv/x/../n-c-" + pvName}, {"a", "/srv/../srv/n-c-" + pvName}, {"a", "/srv//n-c-" + pvName},
		{"a", "/srv/n-c-" + pvName + "/"}, {"a", "/srv/n-c-" + other}, {"a", "/srv/" + pvName}, {"a", "/srv/-" + pvName},
		{"a", "/srv/.deleting-n-c-" + pvName}, {"a", "/srv/N-" + pvName}, {"a", "/srv/n c-" + pvName},
		{"a", "srv/n-c-" + pvName}, {"a", "/srv/" + strings.Repeat("n", 220) + "-" + pvName},
	} {
		_, err := all.locate(volumeAt(bad.server, bad.path))
		var field *volume.FieldError
		require.ErrorAs(t, err, &field, "%v", bad)
	}
	v := volumeAt("a", "/srv/n-c-"+pvName)
	v.Spec.NFS = nil
	_, err := all.locate(v)
	require.ErrorContains(t, err, "no volume of nfs.flexlvm.io")
	v = volumeAt("a", "/srv/n-c-data")
	v.Name = "data"
	_, err = all.locate(v)
	require.Error(t, err, "a PersistentVolume that a person made")
}

func TestParameters(t *testing.T) {
	all := exportsOf(t, "nfs.example.org:/srv=/1", "fd00::1:/srv=/2")
	got, err := all.parseParameters(map[string]string{"server": "nfs.example.org", "path": "/srv"})
	require.NoError(t, err)
	require.Equal(t, Parameters{Export: all[0], OnDelete: Archive, Access: Access{Mode: 0o777, Group: -1}}, got)
	got, err = all.parseParameters(map[string]string{"server": "[fd00::1]", "path": "/srv", "onDelete": "delete", "mode": "2770", "gid": "5000"})
	require.NoError(t, err)
	require.Equal(t, all[1], got.Export)
	require.Equal(t, Remove, got.OnDelete)
	require.Equal(t, "dgrwxrwx---", (got.Access.Mode | 1<<31).String())
	require.Equal(t, 5000, got.Access.Group)
	for given, want := range map[string]bool{"true": true, "false": false} {
		got, err = all.parseParameters(map[string]string{"server": "nfs.example.org", "path": "/srv", "enforceSize": given})
		require.NoError(t, err)
		require.Equal(t, want, got.EnforceSize)
	}

	for want, given := range map[string]map[string]string{
		`unknown parameter "archiveOnDelete"; the known ones are server, path, onDelete, mode, gid, enforceSize`: {"server": "nfs.example.org", "path": "/srv", "archiveOnDelete": "x"},
		"server: is required; this provisioner has the exports nfs.example.org:/srv, [fd00::1]:/srv":             {"path": "/srv"},
		"path: is required": {"server": "nfs.example.org"},
		"other:/srv\": is no export of this provisioner, which has nfs.example.org:/srv": {"server": "other", "path": "/srv"},
		"write /srv":                 {"server": "nfs.example.org", "path": "/srv/"},
		"onDelete \"purge\"":         {"server": "nfs.example.org", "path": "/srv", "onDelete": "purge"},
		"mode \"0999\"":              {"server": "nfs.example.org", "path": "/srv", "mode": "0999"},
		"mode \"4777\"":              {"server": "nfs.example.org", "path": "/srv", "mode": "4777"},
		"mode \"0077\"":              {"server": "nfs.example.org", "path": "/srv", "mode": "0077"},
		"gid \"-1\"":                 {"server": "nfs.example.org", "path": "/srv", "gid": "-1"},
		"gid \"wheel\"":              {"server": "nfs.example.org", "path": "/srv", "gid": "wheel"},
		"enforceSize \"yes\"":        {"server": "nfs.example.org", "path": "/srv", "enforceSize": "yes"},
		"is neither a host name nor": {"server": "a b", "path": "/srv"},
	} {
		_, err := all.parseParameters(given)
		var refusal *controlplane.Refusal
		require.ErrorAs(t, err, &refusal)
		require.ErrorContains(t, err, want)
	}
	_, err = all.parseParameters(map[string]string{"onDelete": "x", "a": "1", "b": "2"})
	for _, want := range []string{`"a"`, `"b"`, "onDelete", "server"} {
		require.ErrorContains(t, err, want, "all that is wrong is told at once")
	}
}

func claimOf(modes ...corev1.PersistentVolumeAccessMode) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "data", UID: "0d3f8f6e-6a0d-4e8f-b6a4-6bd5cb2b4a53"},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: modes,
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceStorage: resource.MustParse("3Gi"),
			}},
		},
	}
}

func classOf(e Export, parameters ...string) *storagev1.StorageClass {
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "shared"}, Parameters: map[string]string{"server": e.Server, "path": e.Path}}
	for i := 0; i < len(parameters); i += 2 {
		class.Parameters[parameters[i]] = parameters[i+1]
	}
	return class
}

func TestPersistentVolume(t *testing.T) {
	all := exportsOf(t, "nfs.example.org:/srv=/1")
	class := classOf(all[0], "onDelete", "retain")
	class.MountOptions = []string{"nfsvers=4.2", "hard"}
	retain := corev1.PersistentVolumeReclaimRetain
	class.ReclaimPolicy = &retain
	r, err := all.read(pvName, claimOf(corev1.ReadWriteMany), class)
	require.NoError(t, err)
	v := r.persistentVolume()
	require.Equal(t, pvName, v.Name)
	require.Equal(t, map[string]string{AnnotationOnDelete: "retain"}, v.Annotations)
	require.Equal(t, &corev1.NFSVolumeSource{Server: "nfs.example.org", Path: "/srv/team-data-" + pvName}, v.Spec.NFS)
	require.Equal(t, []string{"nfsvers=4.2", "hard"}, v.Spec.MountOptions)
	require.Equal(t, retain, v.Spec.PersistentVolumeReclaimPolicy)
	require.Equal(t, "3Gi", v.Spec.Capacity.Storage().String())
	require.Equal(t, []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}, v.Spec.AccessModes)
	at, err := all.locate(v)
	require.NoError(t, err)
	require.Equal(t, r.place, at, "what is written is what is read")

	r, err = all.read(pvName, claimOf(corev1.ReadOnlyMany), classOf(all[0]))
	require.NoError(t, err)
	require.True(t, r.persistentVolume().Spec.NFS.ReadOnly)
	require.Equal(t, corev1.PersistentVolumeReclaimDelete, r.persistentVolume().Spec.PersistentVolumeReclaimPolicy)
	r, err = all.read(pvName, claimOf(corev1.ReadOnlyMany, corev1.ReadWriteOnce), classOf(all[0]))
	require.NoError(t, err)
	require.False(t, r.persistentVolume().Spec.NFS.ReadOnly)

	for option, mounts := range map[string]string{"bind": "nfsvers=4.2,bind", "X-mount.subdir=/": "X-mount.subdir=/", "helper=x": "helper=x"} {
		class.MountOptions = []string{"hard", mounts}
		_, err = all.read(pvName, claimOf(corev1.ReadWriteMany), class)
		require.ErrorContains(t, err, fmt.Sprintf("mountOptions of StorageClass \"shared\": %q is no plain option of NFS", option))
	}
	class.MountOptions = []string{"sec=krb5p,proto=tcp", "rsize=1048576", "clientaddr=fd00::1%eth0", "context=system_u:object_r:container_file_t:s0", "_netdev", "noatime"}
	_, err = all.read(pvName, claimOf(corev1.ReadWriteMany), class)
	require.NoError(t, err)
}

func TestRefusedClaims(t *testing.T) {
	all := exportsOf(t, "nfs.example.org:/srv=/1")
	block, attributes := corev1.PersistentVolumeBlock, "fast"
	for want, change := range map[string]func(*corev1.PersistentVolumeClaimSpec){
		"volumeMode Block": func(s *corev1.PersistentVolumeClaimSpec) { s.VolumeMode = &block },
		"ReadWriteOncePod": func(s *corev1.PersistentVolumeClaimSpec) {
			s.AccessModes = append(s.AccessModes, corev1.ReadWriteOncePod)
		},
		"spec.selector":             func(s *corev1.PersistentVolumeClaimSpec) { s.Selector = &metav1.LabelSelector{} },
		"spec.dataSource":           func(s *corev1.PersistentVolumeClaimSpec) { s.DataSource = &corev1.TypedLocalObjectReference{} },
		"volumeAttributesClassName": func(s *corev1.PersistentVolumeClaimSpec) { s.VolumeAttributesClassName = &attributes },
		"must be greater than 0":    func(s *corev1.PersistentVolumeClaimSpec) { s.Resources.Requests = nil },
	} {
		claim := claimOf(corev1.ReadWriteMany)
		change(&claim.Spec)
		_, err := all.read(pvName, claim, classOf(all[0]))
		var refusal *controlplane.Refusal
		require.ErrorAs(t, err, &refusal)
		require.ErrorContains(t, err, want)
	}
}
