package dataset

import (
	"maps"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/fetch/protocol"
	"github.com/flexlvm/flexlvm/internal/replica"
)

const (
	loader          = "loader" // the container's name
	progressPort    = 8090
	dataDir         = "/data"
	credentialsDir  = "/credentials"
	authorityDir    = "/authority"
	resultFile      = "/dev/termination-log"
	nobody          = int64(65532)
	loadRetries     = int32(6)    // after the first attempt
	afterDeadline   = time.Minute // for the loader to report itself that its time is over
	loaderMemory    = "256Mi"
	bytesInFlight   = "128Mi"
	readinessPeriod = int32(2)
	// A ready loader stays ready, and a busy loader may be slow to answer: its readers must not lose their node
	// for that.
	readinessTimeout  = int32(5)
	readinessFailures = int32(150)
)

// A task holds the inputs of a loader's Job.
type task struct {
	owner          *flexlvmv1.VolumeManager
	config         flexlvmv1.VolumeConfig
	source         Source
	image          string
	index          int
	claim          *corev1.PersistentVolumeClaim
	attempt        string
	made           time.Time // see annotationMade
	from           *copying  // peers to copy from instead of the source; may be nil
	refreshRequest string    // digest of the refresh that was asked for last
	watch          string    // see annotationWatch
	// versions: the volume holds versions of the dataset.
	versions bool
}

// attempt identifies a load and everything it depends on: a failed load is not retried until a person changes
// one of its inputs, or AnnotationRetry.
func attempt(owner *flexlvmv1.VolumeManager, v flexlvmv1.VolumeConfig, s Source, index int) string {
	return digest(s.Load(index), slices.Concat(s.Access, s.checksumFlags()), s.Secret, s.CAConfigMap, s.ServiceAccount, s.Timeout, s.Bandwidth, s.Stream, s.StreamAfter, s.OutputURL,
		s.Capacity.Value(), v.NodeAffinity, v.Tolerations, owner.Annotations[AnnotationRetry], owner.Spec.Loader)
}

// load returns the Job that fills a replica. A node that comes back may still hold files of an earlier claim:
// those that are not of the dataset are removed, unless consumers may have written them.
func (t task) load() *batchv1.Job {
	job := t.job(replicaName(t.owner.Name, t.config.ID, t.index), roleLoad, t.loadArgs(!t.source.Writable()))
	label := replica.NodeLabel(hash(t.owner, t.config.ID))
	pod := &job.Spec.Template.Spec
	pod.Affinity = &corev1.Affinity{
		NodeAffinity: t.nodes(label),
		// Nodes whose replica is complete carry the label; nodes where a replica is being loaded have its pod.
		PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
			TopologyKey:   corev1.LabelHostname,
			LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{replica.LabelDataset: hash(t.owner, t.config.ID), labelRole: roleLoad}},
		}}},
	}
	return job
}

// visit returns the Job that mounts a complete replica: for kubelet to grow it, for the loader to remove
// versions that nobody reads any more, and with sync to fetch what is new in the source. The claim determines
// the node.
func (t task) visit(sync bool) *batchv1.Job {
	args := t.loadArgs(sync)
	if t.source.Writable() {
		args = t.prepareArgs() // a load would overwrite what consumers changed
	}
	return t.job(replicaName(t.owner.Name, t.config.ID, t.index), roleVisit, args)
}

// upload returns the Job that uploads the content of the volume to its target.
func (t task) upload() *batchv1.Job {
	args := append([]string{"put"}, t.flags()...)
	args = append(args, t.versionFlags()...)
	job := t.job(uploadName(t.owner.Name, t.config.ID), roleUpload, append(args, t.target()...))
	job.Annotations[annotationWatch] = t.watch
	return job
}

// mirror returns the Job that uploads what changes in the volume until the Job is deleted. Its pods are
// restarted without limit.
func (t task) mirror() *batchv1.Job {
	args := append([]string{"mirror", "--id=" + string(t.claim.UID)}, t.flags()...)
	job := t.job(replicaName(t.owner.Name, t.config.ID, t.index), roleMirror, append(args, t.target()...))
	forever := int32(math.MaxInt32)
	job.Spec.BackoffLimit, job.Spec.PodFailurePolicy = &forever, nil
	return job
}

// target returns the arguments that name the content to upload and its destination.
func (t task) target() []string {
	if t.source.OutputURL == "" {
		return []string{"--back", "--", t.dest(), t.source.URL}
	}
	return []string{"--", t.dest(), t.source.OutputURL}
}

// dest returns a directory below the root of the volume.
func (t task) dest() string { return path.Join(dataDir, t.source.Dir) }

func (t task) loadArgs(sync bool) []string {
	if t.source.URL == "" {
		return t.prepareArgs()
	}
	args := append(append(t.flags(), t.source.checksumFlags()...), t.source.Flags...)
	args = append(args, t.versionFlags()...)
	args = append(args, t.source.include(t.index)...)
	for _, glob := range slices.Compact(slices.Clone(t.source.Include)) {
		if glob != t.source.Include[t.index] {
			args = append(args, "--elsewhere="+glob)
		}
	}
	if t.source.OrObject {
		args = append(args, "--or-object")
	}
	args = append(args, "--memory="+bytesInFlight)
	if t.source.Timeout > 0 {
		args = append(args, "--timeout="+t.source.Timeout.String())
	}
	if t.source.Bandwidth != "" {
		args = append(args, "--bandwidth="+t.source.Bandwidth)
	}
	if t.source.Stream {
		args = append(args, "--ready-after="+t.source.StreamAfter)
	}
	if sync {
		args = append(args, "--sync")
	}
	if t.source.Writable() { // pods can mount the claim, and write, while it is loaded
		args = append(args, "--keep-changed")
	}
	args = append(args, t.peerArgs()...)
	return append(args, "--", t.source.URL, t.dest())
}

// versionFlags name the directory of the versions.
func (t task) versionFlags() []string {
	if !t.versions {
		return nil
	}
	return []string{"--versions=" + dataDir}
}

// prepareArgs only ensure that the volume can be written to.
func (t task) prepareArgs() []string {
	return []string{"prepare", "--result=" + resultFile, "--listen=:" + strconv.Itoa(progressPort), "--", t.dest()}
}

// flags returns the flags that loads and uploads have in common.
func (t task) flags() []string {
	args := []string{"--progress=json", "--result=" + resultFile, "--listen=:" + strconv.Itoa(progressPort)}
	if t.source.Secret != "" {
		args = append(args, "--credentials-dir="+credentialsDir)
	}
	if t.source.CAConfigMap != "" {
		args = append(args, "--ca-file="+authorityDir+"/ca.crt")
	}
	return append(args, t.source.Access...)
}

func (t task) job(name, role string, args []string) *batchv1.Job {
	m := metaOf(t.owner, t.config, name)
	m.Labels[labelRole], m.Labels[labelReplica] = role, strconv.Itoa(t.index)
	m.Annotations[annotationAttempt] = t.attempt
	m.Annotations[annotationMade] = t.made.UTC().Format(time.RFC3339)
	m.Annotations[annotationClaimUID] = string(t.claim.UID)
	if t.refreshRequest != "" {
		m.Annotations[annotationRefreshed] = t.refreshRequest
	}
	retries := loadRetries
	job := &batchv1.Job{
		ObjectMeta: m,
		Spec: batchv1.JobSpec{
			BackoffLimit:     &retries,
			PodFailurePolicy: failurePolicy(),
			Template:         corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: m.Labels, Annotations: map[string]string{replica.AnnotationVolumeID: t.config.ID, replica.AnnotationOwner: t.owner.Name}}, Spec: t.pod(role, args)},
		},
	}
	return job
}

// failurePolicy ends the Job immediately on an exit code with which the loader reports that a retry would fail, too.
// Other exit codes are retried, because a container runtime sets its own for a loader that was killed, such as 255
// after a restart of the node. A disrupted pod does not count.
func failurePolicy() *batchv1.PodFailurePolicy {
	name, final := loader, []int32{protocol.ExitFailed, protocol.ExitUsage, protocol.ExitRefused, protocol.ExitTimeout}
	return &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{
		{
			Action:          batchv1.PodFailurePolicyActionIgnore,
			OnPodConditions: []batchv1.PodFailurePolicyOnPodConditionsPattern{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue}},
		},
		{
			Action: batchv1.PodFailurePolicyActionFailJob,
			OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{
				ContainerName: &name, Operator: batchv1.PodFailurePolicyOnExitCodesOpIn, Values: final,
			},
		},
	}}
}

// pod returns the loader's pod. It may write the volume, see the files that its VolumeManager names, and
// nothing else.
func (t task) pod(role string, args []string) corev1.PodSpec {
	yes, no, id := true, false, nobody
	account := t.source.ServiceAccount
	spec := corev1.PodSpec{
		RestartPolicy:                corev1.RestartPolicyNever,
		ServiceAccountName:           account,
		AutomountServiceAccountToken: &no,
		EnableServiceLinks:           &no,
		Tolerations:                  t.config.Tolerations,
		SecurityContext: &corev1.PodSecurityContext{
			RunAsNonRoot: &yes, RunAsUser: &id, RunAsGroup: &id,
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
		Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: t.claim.Name},
		}}},
		Containers: []corev1.Container{{
			Name: loader, Image: t.image, ImagePullPolicy: corev1.PullIfNotPresent, Command: []string{"/fetch"}, Args: unexpanded(args...),
			// A loader that ends before it writes a result would otherwise leave no message.
			TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
			Ports:                    []corev1.ContainerPort{{Name: "progress", ContainerPort: progressPort}},
			ReadinessProbe:           t.probe(role),
			Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: resource.MustParse(loaderMemory)},
			},
			SecurityContext: &corev1.SecurityContext{
				AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes,
				Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			},
			VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: dataDir}},
		}},
	}
	if change := corev1.FSGroupChangeOnRootMismatch; t.ownsFiles(role) {
		spec.SecurityContext.FSGroup, spec.SecurityContext.FSGroupChangePolicy = &id, &change
	}
	t.mountFiles(&spec, role)
	t.template(&spec)
	return spec
}

// ownsFiles reports whether the loader's pod gets an fsGroup: kubelet then sets the group of the volume's files, and
// changes their modes. It must not do so while consumers may be writing. A load needs the group to write. An upload
// starts when no pod uses the volume, and can read more files with the group. Without fsGroup, the files of Secrets
// keep root's group as well (see mountFiles).
func (t task) ownsFiles(role string) bool {
	return !t.source.Writable() || role == roleLoad || role == roleUpload
}

// unexpanded escapes what Kubernetes would expand in arguments and environment variables: $(NAME) and $$.
func unexpanded(texts ...string) []string {
	out := make([]string, len(texts))
	for i, text := range texts {
		out[i] = strings.ReplaceAll(text, "$", "$$")
	}
	return out
}

// probe returns the readiness probe of a loader that is of use before its end: one that streams, or that serves
// its replica to others. Other loaders have none, as kubelet would report them as not ready until they end.
func (t task) probe(role string) *corev1.Probe {
	if early := role == rolePeerServer || role == roleLoad && t.source.Stream; !early {
		return nil
	}
	return &corev1.Probe{
		ProbeHandler:  corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: protocol.ReadyPath, Port: intstr.FromInt32(progressPort)}},
		PeriodSeconds: readinessPeriod, TimeoutSeconds: readinessTimeout, FailureThreshold: readinessFailures,
	}
}

// template adds what the VolumeManager sets for its loaders.
func (t task) template(spec *corev1.PodSpec) {
	with := t.owner.Spec.Loader
	if with == nil {
		return
	}
	spec.PriorityClassName, spec.ImagePullSecrets = with.PriorityClassName, with.ImagePullSecrets
	c := &spec.Containers[0]
	for _, e := range with.Env {
		c.Env = append(c.Env, corev1.EnvVar{Name: e.Name, Value: unexpanded(e.Value)[0]})
	}
	maps.Copy(c.Resources.Requests, with.Resources.Requests)
	c.Resources.Limits = with.Resources.Limits
	for name, limit := range c.Resources.Limits { // a request must not exceed its limit
		if asked, is := c.Resources.Requests[name]; is && asked.Cmp(limit) > 0 {
			c.Resources.Requests[name] = limit
		}
	}
}

// mountFiles mounts the claim that the loader copies, and its credentials. The loader reports a Secret that
// does not exist: without "optional" its pod would wait forever without a message.
//
// The files of a Secret belong to root and, if the pod has one, to its fsGroup. Without fsGroup, all users may read
// them: the only container of the pod runs as a single user.
func (t task) mountFiles(spec *corev1.PodSpec, role string) {
	yes, mode := true, int32(0o440)
	if !t.ownsFiles(role) {
		mode = 0o444
	}
	add := func(name, dir string, from corev1.VolumeSource) {
		spec.Volumes = append(spec.Volumes, corev1.Volume{Name: name, VolumeSource: from})
		c := &spec.Containers[0]
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: dir, ReadOnly: true})
	}
	if name := t.source.Claim; name != "" {
		add("source", sourceDir, corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name, ReadOnly: true}})
	}
	if name := t.source.Secret; name != "" {
		add("credentials", credentialsDir, corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: name, Optional: &yes, DefaultMode: &mode}})
	}
	if name := t.source.Peers; name != "" && t.from != nil {
		add("peers", peersDir, corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: name, Optional: &yes, DefaultMode: &mode}})
	}
	if name := t.source.CAConfigMap; name != "" {
		add("authority", authorityDir, corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: name}, Optional: &yes,
		}})
	}
}

// nodes returns the affinity to the nodes that the loader may run on.
func (t task) nodes(label string) *corev1.NodeAffinity {
	out := onOtherNodes(t.config.NodeAffinity, label)
	if node := t.claim.Annotations[annotationNode]; node != "" {
		onlyOn(node, out)
	}
	return out
}

// onOtherNodes is the user's affinity, without the nodes that already have the data. Terms are alternatives, so
// each needs the condition.
func onOtherNodes(user *corev1.NodeAffinity, label string) *corev1.NodeAffinity {
	out := requiredAffinity(labelDoesNotExist(label))
	if user == nil {
		return out
	}
	out.PreferredDuringSchedulingIgnoredDuringExecution = user.PreferredDuringSchedulingIgnoredDuringExecution
	required := user.RequiredDuringSchedulingIgnoredDuringExecution
	if required == nil || len(required.NodeSelectorTerms) == 0 {
		return out
	}
	terms := required.DeepCopy().NodeSelectorTerms
	for i := range terms {
		terms[i].MatchExpressions = append(terms[i].MatchExpressions, labelDoesNotExist(label))
	}
	out.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms = terms
	return out
}
