package v1

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// VolumeManager requests datasets on the disks of nodes: each of its volumes names a source, and the number of
// nodes that the data has to be on before a job starts there. Its fields are those of Intel's VCK, whose
// manifests work here with another apiVersion.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Namespaced,singular=volumemanager,path=volumemanagers,shortName=vm,categories=flexlvm
// +kubebuilder:metadata:labels="app.kubernetes.io/part-of=flexlvm"
// +kubebuilder:metadata:labels="app.kubernetes.io/component=definitions"
// +kubebuilder:printcolumn:name="State",type=string,JSONPath=`.status.state`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.summary.ready`
// +kubebuilder:printcolumn:name="Progress",type=string,JSONPath=`.status.summary.progress`
// +kubebuilder:printcolumn:name="Left",type=string,JSONPath=`.status.summary.timeLeft`
// +kubebuilder:printcolumn:name="Files",type=string,JSONPath=`.status.summary.files`
// +kubebuilder:printcolumn:name="Loaded",type=string,JSONPath=`.status.summary.bytes`
// +kubebuilder:printcolumn:name="Claim",type=string,JSONPath=`.status.summary.claims`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Version",type=string,priority=1,JSONPath=`.status.summary.version`
// +kubebuilder:printcolumn:name="Nodes",type=string,priority=1,JSONPath=`.status.summary.nodes`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.summary.message`
type VolumeManager struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec VolumeManagerSpec `json:"spec"`
	// +optional
	Status VolumeManagerStatus `json:"status,omitzero"`
}

// VolumeManagerList is a list of VolumeManagers.
//
// +kubebuilder:object:root=true
type VolumeManagerList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []VolumeManager `json:"items"`
}

// VolumeManagerSpec is the desired state of a VolumeManager.
//
// +kubebuilder:validation:XValidation:rule="has(self.volumes) != has(self.volumeConfigs)",message="set spec.volumes, or its older name spec.volumeConfigs, and not both"
// +kubebuilder:validation:XValidation:rule="has(self.volumes) == has(oldSelf.volumes)",message="spec.volumes cannot be renamed to spec.volumeConfigs, nor back"
type VolumeManagerSpec struct {
	// Volumes that are requested, each with its data.
	// +listType=map
	// +listMapKey=id
	// +optional
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:XValidation:rule="self.all(v, !oldSelf.exists(o, o.id == v.id) || oldSelf.exists(o, o.id == v.id && o.sourceType == v.sourceType))",message="sourceType cannot be changed; make another volume"
	// +kubebuilder:validation:XValidation:rule="self.all(v, !oldSelf.exists(o, o.id == v.id) || oldSelf.exists(o, o.id == v.id && (o.sourceType != v.sourceType || quantity(v.capacity).compareTo(quantity(o.capacity)) >= 0)))",message="capacity cannot shrink, as XFS cannot; make another volume"
	// +kubebuilder:validation:XValidation:rule="self.all(v, !oldSelf.exists(o, o.id == v.id) || oldSelf.exists(o, o.id == v.id && (has(v.options) && 'storageClass' in v.options ? v.options['storageClass'] : 'flexlvm-dataset') == (has(o.options) && 'storageClass' in o.options ? o.options['storageClass'] : 'flexlvm-dataset')))",message="storageClass cannot be changed; make another volume"
	// +kubebuilder:validation:XValidation:rule="!self.exists(a, a.sourceType != 'NFS' && self.exists(b, b.id.startsWith(a.id + '-') && b.id.substring(size(a.id) + 1).matches('^[0-9]+$')))",message="no id may be another volume's id, a dash and a number (a-0 beside a), because the claims of that volume's replicas have such names; choose another id"
	Volumes []VolumeConfig `json:"volumes,omitempty"`
	// VolumeConfigs is VCK's name for volumes. As in VCK, two of them may have the same id.
	// +listType=atomic
	// +optional
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:XValidation:rule="self.all(v, !oldSelf.exists(o, o.id == v.id) || oldSelf.exists(o, o.id == v.id && o.sourceType == v.sourceType))",message="sourceType cannot be changed; make another volume"
	// +kubebuilder:validation:XValidation:rule="self.all(v, !oldSelf.exists(o, o.id == v.id) || oldSelf.exists(o, o.id == v.id && (o.sourceType != v.sourceType || quantity(v.capacity).compareTo(quantity(o.capacity)) >= 0)))",message="capacity cannot shrink, as XFS cannot; make another volume"
	// +kubebuilder:validation:XValidation:rule="self.all(v, !oldSelf.exists(o, o.id == v.id) || oldSelf.exists(o, o.id == v.id && (has(v.options) && 'storageClass' in v.options ? v.options['storageClass'] : 'flexlvm-dataset') == (has(o.options) && 'storageClass' in o.options ? o.options['storageClass'] : 'flexlvm-dataset')))",message="storageClass cannot be changed; make another volume"
	// +kubebuilder:validation:XValidation:rule="!self.exists(a, a.sourceType != 'NFS' && self.exists(b, b.id.startsWith(a.id + '-') && b.id.substring(size(a.id) + 1).matches('^[0-9]+$')))",message="no id may be another volume's id, a dash and a number (a-0 beside a), because the claims of that volume's replicas have such names; choose another id"
	VolumeConfigs []VolumeConfig `json:"volumeConfigs,omitempty"`
	// Loader configures the pods that load and upload data, beyond what they need themselves.
	// +optional
	Loader *LoaderTemplate `json:"loader,omitempty"`
	// State that is requested. Completed releases all volumes, after uploading those that have an outputURL.
	// With any other value the volumes are kept.
	// +optional
	// +kubebuilder:default=Running
	// +kubebuilder:validation:Enum="";Pending;Running;Failed;Completed
	State State `json:"state,omitempty"`
}

// Given returns the volumes as they were written, under either name.
func (s VolumeManagerSpec) Given() []VolumeConfig {
	if len(s.Volumes) > 0 {
		return s.Volumes
	}
	return s.VolumeConfigs
}

// All returns the volumes in the order of the spec, each with a unique id: a repeated id gets a number
// appended. An NFS volume has at least one replica, because VCK's client wrote none.
func (s VolumeManagerSpec) All() []VolumeConfig {
	out := slices.Clone(s.Given())
	taken := map[string]bool{}
	for _, v := range out {
		taken[v.ID] = true
	}
	seen := map[string]bool{}
	for i := range out {
		v := &out[i]
		if v.SourceType == SourceNFS {
			v.Replicas = max(1, v.Replicas)
		}
		id := v.ID
		for n := 2; seen[v.ID]; n++ {
			if next := fmt.Sprintf("%s-n%d", id, n); !taken[next] && !slices.ContainsFunc(out, func(v VolumeConfig) bool { return isNumbered(v.ID, next) }) {
				v.ID = next
			}
		}
		seen[v.ID], taken[v.ID] = true, true
	}
	return out
}

// isNumbered reports whether id is other with a number appended, which is how the claims of other are named.
func isNumbered(id, other string) bool {
	number, found := strings.CutPrefix(id, other+"-")
	return found && number != "" && strings.Trim(number, "0123456789") == ""
}

// LoaderTemplate holds settings that a cluster may require of every pod, or a network of every program.
type LoaderTemplate struct {
	// Resources of the loader. Values that are not set keep their defaults.
	// +optional
	Resources LoaderResources `json:"resources,omitzero"`
	// Env are environment variables of the loader, such as HTTPS_PROXY. They are no place for secrets.
	// +listType=map
	// +listMapKey=name
	// +optional
	// +kubebuilder:validation:MaxItems=32
	Env []LoaderEnv `json:"env,omitempty"`
	// PriorityClassName of the loader's pods. It cannot be one of Kubernetes' own, which begin with system-.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('system-')",message="must not begin with system-: such priority classes are for parts of the cluster; name another one"
	PriorityClassName string `json:"priorityClassName,omitempty"`
	// ImagePullSecrets for the loader's image.
	// +listType=atomic
	// +optional
	// +kubebuilder:validation:MaxItems=8
	ImagePullSecrets []corev1.LocalObjectReference `json:"imagePullSecrets,omitempty"`
}

// LoaderResources are requests and limits of cpu, memory and ephemeral-storage.
type LoaderResources struct {
	// +optional
	// +kubebuilder:validation:MaxProperties=3
	// +kubebuilder:validation:XValidation:rule="self.all(k, k in ['cpu', 'memory', 'ephemeral-storage'])",message="only cpu, memory and ephemeral-storage can be requested"
	Requests corev1.ResourceList `json:"requests,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxProperties=3
	// +kubebuilder:validation:XValidation:rule="self.all(k, k in ['cpu', 'memory', 'ephemeral-storage'])",message="only cpu, memory and ephemeral-storage can be limited"
	Limits corev1.ResourceList `json:"limits,omitempty"`
}

// LoaderEnv is an environment variable.
type LoaderEnv struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// +optional
	// +kubebuilder:validation:MaxLength=2048
	Value string `json:"value,omitempty"`
}

// State of a VolumeManager, requested or observed.
type State string

// The states of a VolumeManager.
const (
	StatePending   State = "Pending"
	StateRunning   State = "Running"
	StateFailed    State = "Failed"
	StateCompleted State = "Completed"
)

// SourceType is the type of source that the data of a volume comes from.
//
// +kubebuilder:validation:Enum=S3;S3-Dev;Pachyderm;NFS;Aeon;HTTP;HuggingFace;OCI;PVC;GCS;AzureBlob;Shared
// +kubebuilder:validation:MaxLength=16
type SourceType string

// The sources.
const (
	// SourceS3 copies objects to as many nodes as there are replicas; consumers only read.
	SourceS3 SourceType = "S3"
	// SourceS3Dev copies objects to one node; the consumer may write.
	SourceS3Dev SourceType = "S3-Dev"
	// SourcePachyderm copies from Pachyderm's S3 gateway; consumers only read.
	SourcePachyderm SourceType = "Pachyderm"
	// SourceHTTP copies files from a list with a SHA-256 of each; consumers only read.
	SourceHTTP SourceType = "HTTP"
	// SourceHub copies a model or a dataset from the Hugging Face Hub; consumers only read.
	SourceHub SourceType = "HuggingFace"
	// SourceOCI copies an artifact or an image from a registry; consumers only read.
	SourceOCI SourceType = "OCI"
	// SourcePVC copies the content of a claim of the namespace; consumers only read.
	SourcePVC SourceType = "PVC"
	// SourceGCS copies objects from Google Cloud Storage; consumers only read.
	SourceGCS SourceType = "GCS"
	// SourceAzure copies blobs from Azure Blob Storage; consumers only read.
	SourceAzure SourceType = "AzureBlob"
	// SourceNFS copies nothing: kubelet mounts the share.
	SourceNFS SourceType = "NFS"
	// SourceShared copies nothing: it is a dataset that another namespace offers.
	SourceShared SourceType = "Shared"
	// SourceAeon is an empty cache that a streaming service fills.
	SourceAeon SourceType = "Aeon"
)

// VolumeConfig is one volume and its data. An option that its source does not know is refused rather than
// ignored, because its author relies on it.
//
// +kubebuilder:validation:XValidation:rule="size(self.labels) > 0",message="labels cannot be empty"
// +kubebuilder:validation:XValidation:rule="self.sourceType in ['NFS', 'Shared'] || self.accessMode == 'ReadWriteOnce'",message="access mode has to be ReadWriteOnce"
// +kubebuilder:validation:XValidation:rule="self.sourceType != 'Shared' || self.accessMode == 'ReadOnlyMany'",message="access mode has to be ReadOnlyMany with sourceType Shared"
// +kubebuilder:validation:XValidation:rule="self.sourceType != 'Shared' || (has(self.options) && ['namespace', 'name', 'volume'].all(k, k in self.options))",message="namespace, name and volume have to be set in options"
// +kubebuilder:validation:XValidation:rule="self.sourceType != 'Shared' || (type(self.replicas) == int && self.replicas == 1)",message="replicas has to be 1 with sourceType Shared, whose nodes are those of the owner; leave it out"
// +kubebuilder:validation:XValidation:rule="!has(self.sharedWith) || size(self.sharedWith) == 0 || !(self.sourceType in ['S3-Dev', 'Aeon', 'NFS', 'Shared'])",messageExpression="'sharedWith is not for sourceType ' + self.sourceType + ', of which there are no replicas that others could read'"
// +kubebuilder:validation:XValidation:rule="self.sourceType != 'NFS' || self.accessMode in ['ReadWriteMany', 'ReadOnlyMany']",message="access mode has to be either ReadWriteMany or ReadOnlyMany"
// +kubebuilder:validation:XValidation:rule="!(self.sourceType in ['S3', 'S3-Dev']) || (has(self.options) && ('awsCredentialsSecretName' in self.options || 'serviceAccountName' in self.options || ('anonymous' in self.options && self.options['anonymous'] in ['1', 't', 'T', 'true', 'TRUE', 'True'])))",message="awsCredentialsSecretName key has to be set in options"
// +kubebuilder:validation:XValidation:rule="self.sourceType in ['Pachyderm', 'NFS', 'Aeon', 'PVC', 'Shared'] || has(self.sourceURL) || (has(self.options) && 'sourceURL' in self.options)",message="sourceURL has to be set in options"
// +kubebuilder:validation:XValidation:rule="!has(self.sourceURL) || size(self.sourceURL) == 0 || !has(self.options) || !('sourceURL' in self.options) || self.sourceURL == self.options['sourceURL']",message="sourceURL and options.sourceURL differ; set one of them"
// +kubebuilder:validation:XValidation:rule="!has(self.endpointURL) || size(self.endpointURL) == 0 || !has(self.options) || !('endpointURL' in self.options) || self.endpointURL == self.options['endpointURL']",message="endpointURL and options.endpointURL differ; set one of them"
// +kubebuilder:validation:XValidation:rule="type(self.replicas) != int || (self.replicas >= 0 && self.replicas <= 5000)",message="replicas has to be a number from 0 to 5000, or All for one on each node that matches"
// +kubebuilder:validation:XValidation:rule="self.sourceType == 'NFS' || type(self.replicas) != int || self.replicas >= 1",messageExpression="'replicas has to be 1 or more with sourceType ' + self.sourceType"
// +kubebuilder:validation:XValidation:rule="self.sourceType != 'NFS' || type(self.replicas) == int",message="replicas has to be a number with sourceType NFS, of which nothing is copied to nodes; leave it out"
// +kubebuilder:validation:XValidation:rule="!(self.sourceType in ['S3-Dev', 'Aeon']) || (type(self.replicas) == int && self.replicas == 1)",messageExpression="'replicas has to be 1 with sourceType ' + self.sourceType"
// +kubebuilder:validation:XValidation:rule="(type(self.replicas) == int && self.replicas <= 1) || !has(self.options) || !('resync' in self.options) || size(self.options['resync']) == 0 || self.options['resync'] in ['0', 'f', 'F', 'false', 'FALSE', 'False']",message="replicas cannot be > 1 when resync is set"
// +kubebuilder:validation:XValidation:rule="self.sourceType != 'NFS' || (has(self.options) && 'server' in self.options)",message="server has to be set in options"
// +kubebuilder:validation:XValidation:rule="self.sourceType != 'NFS' || (has(self.options) && 'path' in self.options)",message="path has to be set in options"
// +kubebuilder:validation:XValidation:rule="!(self.sourceType in ['GCS', 'AzureBlob']) || (has(self.options) && ('credentialsSecretName' in self.options || 'serviceAccountName' in self.options || 'anonymous' in self.options))",message="credentialsSecretName has to be set in options, or serviceAccountName, or anonymous"
// +kubebuilder:validation:XValidation:rule="self.sourceType != 'PVC' || (has(self.options) && 'claimName' in self.options)",message="claimName has to be set in options"
// +kubebuilder:validation:XValidation:rule="self.sourceType != 'Pachyderm' || (has(self.options) && (['repo', 'branch', 'inputPath', 'outputPath'].all(k, k in self.options) || ['repo', 'branch', 'filePath'].all(k, k in self.options)))",message="repo, branch, inputPath and outputPath have to be set in options"
// +kubebuilder:validation:XValidation:rule="!has(self.options) || self.options.all(k, k in ['awsCredentialsSecretName', 'sourceURL', 'endpointURL', 'dataPath', 'timeoutForDataDownload', 'distributionStrategy', 'resync', 'region', 'addressStyle', 'anonymous', 'serviceAccountName', 'versionID', 'include', 'exclude', 'parallel', 'bandwidth', 'caConfigMap', 'storageClass', 'evictionPolicy', 'stream', 'streamAfter', 'outputURL', 'nodeAffinityGrace', 'repo', 'branch', 'project', 'inputPath', 'outputPath', 'pachydermServiceAddress', 'pachydermSecretName', 'credentialsSecretName', 'claimName', 'filePath', 'recursive', 'EndpointURL', 'refresh', 'refreshTimeZone', 'checksum', 'displaceable', 'displaces', 'peersSecretName', 'sourceLoaders', 'server', 'path', 'namespace', 'name', 'volume'])",messageExpression="'unknown option \"' + self.options.filter(k, !(k in ['awsCredentialsSecretName', 'sourceURL', 'endpointURL', 'dataPath', 'timeoutForDataDownload', 'distributionStrategy', 'resync', 'region', 'addressStyle', 'anonymous', 'serviceAccountName', 'versionID', 'include', 'exclude', 'parallel', 'bandwidth', 'caConfigMap', 'storageClass', 'evictionPolicy', 'stream', 'streamAfter', 'outputURL', 'nodeAffinityGrace', 'repo', 'branch', 'project', 'inputPath', 'outputPath', 'pachydermServiceAddress', 'pachydermSecretName', 'credentialsSecretName', 'claimName', 'filePath', 'recursive', 'EndpointURL', 'refresh', 'refreshTimeZone', 'checksum', 'displaceable', 'displaces', 'peersSecretName', 'sourceLoaders', 'server', 'path', 'namespace', 'name', 'volume']))[0] + '\"; docs/datasets.md lists them'"
// +kubebuilder:validation:XValidation:rule="!has(self.options) || !('refresh' in self.options) || self.options['refresh'].matches('^([-+a-zA-Z0-9.]*|@[a-z]+|[^ =]+( +[^ =]+){4})$')",message="refresh has to be \"true\", how often, such as 10m, or the five fields of a cron schedule, such as \"30 3 * * 1-5\", whose time zone is refreshTimeZone"
// +kubebuilder:validation:XValidation:rule="!has(self.options) || !('evictionPolicy' in self.options) || self.options['evictionPolicy'] in ['LRU', 'Never']",message="evictionPolicy has to be LRU or Never"
// +kubebuilder:validation:XValidation:rule="!has(self.options) || ['stream', 'anonymous'].all(k, !(k in self.options) || size(self.options[k]) == 0 || self.options[k] in ['1', 't', 'T', 'true', 'TRUE', 'True', '0', 'f', 'F', 'false', 'FALSE', 'False'])",message="stream and anonymous have to be \"true\" or \"false\""
type VolumeConfig struct {
	// ID of the volume in its VolumeManager.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	ID string `json:"id"`
	// Replicas is the number of nodes that the data has to be on, or All for one replica on each node that
	// matches nodeAffinity and tolerations, as nodes come and go.
	// +kubebuilder:default=1
	// +optional
	Replicas ReplicaCount `json:"replicas"`
	// SourceType is the type of source that the data comes from.
	SourceType SourceType `json:"sourceType"`
	// SourceURL of the data. This is KVC's place for it; VCK had it in options, which works as well.
	// +optional
	// +kubebuilder:validation:MaxLength=2048
	SourceURL string `json:"sourceURL,omitempty"`
	// EndpointURL of the server. This is KVC's place for it; VCK had it in options, which works as well.
	// +optional
	// +kubebuilder:validation:MaxLength=2048
	EndpointURL string `json:"endpointURL,omitempty"`
	// AccessMode as in VCK: ReadWriteOnce for data that is copied to nodes, ReadWriteMany or ReadOnlyMany for
	// NFS. It is ReadOnlyMany for Shared.
	// +kubebuilder:validation:Enum=ReadWriteOnce;ReadOnlyMany;ReadWriteMany
	AccessMode corev1.PersistentVolumeAccessMode `json:"accessMode"`
	// Capacity of each replica, which limits what can be written. It can grow but not shrink.
	// +kubebuilder:validation:XValidation:rule="isQuantity(self) && quantity(self).isGreaterThan(quantity('0'))",message="capacity has to be a quantity of more than 0, such as 5Gi"
	// +kubebuilder:validation:MaxLength=32
	Capacity string `json:"capacity"`
	// Labels of all objects that are created for this volume.
	Labels VolumeLabels `json:"labels"`
	// Options of the source; docs/datasets.md lists them.
	// +optional
	// +kubebuilder:validation:MaxProperties=32
	Options map[string]OptionValue `json:"options,omitempty"`
	// SharedWith are namespaces that may also read the data, through a VolumeManager of their own with
	// sourceType Shared. A namespace that is removed from the list keeps its running pods but can start no new
	// ones.
	// +listType=set
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:items:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	SharedWith []string `json:"sharedWith,omitempty"`
	// NodeAffinity restricts the nodes for the data, or prefers some of them.
	// +optional
	NodeAffinity *corev1.NodeAffinity `json:"nodeAffinity,omitempty"`
	// Tolerations of the jobs that load the data, and therefore taints of nodes that the data may be on.
	// +listType=atomic
	// +optional
	// +kubebuilder:validation:MaxItems=32
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`
}

// VolumeLabels are labels that a user chooses for the objects created for a volume.
//
// +kubebuilder:validation:MaxProperties=32
// +kubebuilder:validation:XValidation:rule="self.all(k, size(k) - k.lastIndexOf('/') <= 64 && k.indexOf('/') <= 253 && k.matches('^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$'))",message="labels must have valid keys: NAME or PREFIX/NAME, as in all labels of Kubernetes"
// +kubebuilder:validation:XValidation:rule="self.all(k, !k.startsWith('flexlvm.io/'))",message="labels cannot begin with flexlvm.io/"
type VolumeLabels map[string]LabelValue

// LabelValue is a valid value of a Kubernetes label.
//
// +kubebuilder:validation:MaxLength=63
// +kubebuilder:validation:Pattern=`^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$`
type LabelValue string

// OptionValue is the value of an option.
//
// +kubebuilder:validation:MaxLength=2048
type OptionValue string
