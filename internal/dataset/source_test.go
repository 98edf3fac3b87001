package dataset

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
)

type options = map[string]flexlvmv1.OptionValue

func volumeOf(kind flexlvmv1.SourceType, replicas flexlvmv1.ReplicaCount, o options) flexlvmv1.VolumeConfig {
	return flexlvmv1.VolumeConfig{ID: "a", Replicas: replicas, SourceType: kind, AccessMode: corev1.ReadWriteOnce, Capacity: "1Gi",
		Labels: map[string]flexlvmv1.LabelValue{"k": "v"}, Options: o}
}

func s3Options(more options) options {
	out := options{"sourceURL": "s3://b/p/", "awsCredentialsSecretName": "s"}
	for k, v := range more {
		out[k] = v
	}
	return out
}

// Messages that VCK had keep its words, because scripts match them.
func TestSourceErrors(t *testing.T) {
	pachyderm := func(more options) options {
		out := options{"repo": "r", "branch": "master", "inputPath": "in/", "outputPath": "out"}
		for k, v := range more {
			out[k] = v
		}
		return out
	}
	for want, v := range map[string]flexlvmv1.VolumeConfig{
		`sourceType "FTP" is not known; it is one of Aeon, AzureBlob, GCS, HTTP, HuggingFace, NFS, OCI, PVC, Pachyderm, S3, S3-Dev`: volumeOf("FTP", 1, nil),
		`option "server" does not belong to sourceType S3; remove it`:                                                               volumeOf("S3", 1, s3Options(options{"server": "x"})),
		"awsCredentialsSecretName key has to be set in options":                                                                     volumeOf("S3", 1, options{"sourceURL": "s3://b/"}),
		"sourceURL has to be set in options":                                                                                        volumeOf("S3", 1, options{"awsCredentialsSecretName": "s"}),
		`sourceURL "http://b/" has to be s3://BUCKET/KEY, or s3://BUCKET/PREFIX/ for all below it`:                                  volumeOf("S3", 1, s3Options(options{"sourceURL": "http://b/"})),
		`error while parsing timeout for data download: time: invalid duration "soon"`:                                              volumeOf("S3", 1, s3Options(options{"timeoutForDataDownload": "soon"})),
		"invalid distributionStrategy [[1]] specified, it must be a map[string]int":                                                 volumeOf("S3", 1, s3Options(options{"distributionStrategy": "[1]"})),
		`invalid distributionStrategy [{"a":"1"}] specified, it must be a map[string]int`:                                           volumeOf("S3", 1, s3Options(options{"distributionStrategy": `{"a":"1"}`})),
		`total number of replicas: [3] in distributionStrategy [{"a*":1,"b*":2}], does not match number of replicas provided: [2]`:  volumeOf("S3", 2, s3Options(options{"distributionStrategy": `{"a*":1,"b*":2}`})),
		`total number of replicas: [-1] in distributionStrategy [{"a":-1,"b":3}], does not match number of replicas provided: [2]`:  volumeOf("S3", 2, s3Options(options{"distributionStrategy": `{"a":-1,"b":3}`})),
		"distributionStrategy and include both say what to load":                                                                    volumeOf("S3", 1, s3Options(options{"distributionStrategy": `{"a":1}`, "include": "b"})),
		"replicas cannot be > 1 when resync is set":                                                                                 volumeOf("S3", 2, s3Options(options{"resync": "true"})),
		"refresh true: it would bring back what consumers":                                                                          volumeOf("S3-Dev", 1, s3Options(options{"refresh": "true"})),
		`error while parsing resync option: strconv.ParseBool: parsing "foobar": invalid syntax; write "true" or "false"`:           volumeOf("S3", 1, s3Options(options{"resync": "foobar"})),
		`to fetch what changes in the source write refresh: "10m"`:                                                                  volumeOf("S3", 1, s3Options(options{"resync": "10m"})),
		`resync "true" with sourceType Pachyderm: only what came from S3`:                                                           volumeOf("Pachyderm", 1, pachyderm(options{"resync": "true"})),
		`resync "true" with anonymous "true": an upload needs credentials`:                                                          volumeOf("S3", 1, s3Options(options{"resync": "true", "anonymous": "true"})),
		`error while parsing stream option`:                                                                                         volumeOf("S3", 1, s3Options(options{"stream": "maybe"})),
		`refresh "often" has to be true`:                                                                                            volumeOf("S3", 1, s3Options(options{"refresh": "often"})),
		`outputURL "gs://x" has to begin with s3://`:                                                                                volumeOf("S3", 1, s3Options(options{"outputURL": "gs://x"})),
		"what consumers write to a volume of sourceType S3-Dev":                                                                     volumeOf("S3-Dev", 1, s3Options(options{"evictionPolicy": "LRU"})),
		"branch has to be set in options":                                                                                           volumeOf("Pachyderm", 1, pachyderm(options{"branch": ""})),
		`server "" and path "x": both have to be set in options`:                                                                    volumeOf("NFS", 1, options{"path": "x"}),
		`pachydermServiceAddress "a:b:c"`:                                                                                           volumeOf("Pachyderm", 1, pachyderm(options{"pachydermServiceAddress": "a:b:c"})),
		`option "sourceURL" does not belong to sourceType Pachyderm`:                                                                volumeOf("Pachyderm", 1, pachyderm(options{"sourceURL": "s3://b/"})),
		`outputURL "s3://out/" with sourceType Pachyderm: `:                                                                         volumeOf("Pachyderm", 1, pachyderm(options{"outputURL": "s3://out/"})),
		`outputURL "s3://out/" with anonymous "true": an upload needs credentials; name awsCredentialsSecretName`:                   volumeOf("S3", 1, s3Options(options{"outputURL": "s3://out/", "anonymous": "true"})),
		`outputURL "s3://out/" with distributionStrategy {"a":1}: each replica holds other files`:                                   volumeOf("S3", 1, s3Options(options{"outputURL": "s3://out/", "distributionStrategy": `{"a":1}`})),
		`bandwidth "10MB/s" has to be bytes a second, such as 100Mi`:                                                                volumeOf("S3", 1, s3Options(options{"bandwidth": "10MB/s"})),
		`bandwidth "-1Mi" has to be bytes a second`:                                                                                 volumeOf("S3", 1, s3Options(options{"bandwidth": "-1Mi"})),
		`streamAfter "ten" has to be a count of files, such as 10, or bytes with a unit`:                                            volumeOf("S3", 1, s3Options(options{"stream": "true", "streamAfter": "ten"})),
		`parallel "5000" has to be how many requests may be open at once, from 1 to 1024`:                                           volumeOf("S3", 1, s3Options(options{"parallel": "5000"})),
		`parallel "-1" has to be`:                                                                                                   volumeOf("Pachyderm", 1, pachyderm(options{"parallel": "-1"})),
		`checksum "some" has to be required, ifPresent or none`:                                                                     volumeOf("S3", 1, s3Options(options{"checksum": "some"})),
		`sourceURL "s3://b/" has to be https://HOST/LIST`:                                                                           volumeOf("HTTP", 1, options{"sourceURL": "s3://b/"}),
		`sourceURL "https://h/set/" has to be https://HOST/LIST`:                                                                    volumeOf("HTTP", 1, options{"sourceURL": "https://h/set/"}),
		`sourceURL "hf://name" has to be hf://ORG/NAME[@REVISION][/PATH]`:                                                           volumeOf("HuggingFace", 1, options{"sourceURL": "hf://name"}),
		`sourceURL "hf://datasets/name" has to be hf://`:                                                                            volumeOf("HuggingFace", 1, options{"sourceURL": "hf://datasets/name"}),
		`option "versionID" does not belong to sourceType HuggingFace`:                                                              volumeOf("HuggingFace", 1, options{"sourceURL": "hf://org/name", "versionID": "x"}),
		`sourceURL "oci://registry" has to be oci://REGISTRY/REPOSITORY[:TAG|@DIGEST]`:                                              volumeOf("OCI", 1, options{"sourceURL": "oci://registry"}),
		`sourceURL "oci://r/m@sha256:0" has to be oci://`:                                                                           volumeOf("OCI", 1, options{"sourceURL": "oci://r/m@sha256:0"}),
		`claimName "A_b" has to be the name of a PersistentVolumeClaim`:                                                             volumeOf("PVC", 1, options{"claimName": "A_b"}),
		`claimName "" has to be the name of`:                                                                                        volumeOf("PVC", 1, nil),
		`option "sourceURL" does not belong to sourceType PVC`:                                                                      volumeOf("PVC", 1, options{"claimName": "c", "sourceURL": "s3://b/"}),
		`sourceURL "gs://B/x" has to be gs://BUCKET/KEY`:                                                                            volumeOf("GCS", 1, options{"sourceURL": "gs://B/x", "anonymous": "true"}),
		`sourceURL "azblob://acc" has to be azblob://ACCOUNT/CONTAINER/KEY`:                                                         volumeOf("AzureBlob", 1, options{"sourceURL": "azblob://acc", "anonymous": "true"}),
		"credentialsSecretName has to be set in options, or serviceAccountName":                                                     volumeOf("GCS", 1, options{"sourceURL": "gs://bkt/x", "anonymous": "false"}),
		"sourceURL holds a password, which everybody could read; name a Secret in credentialsSecretName":                            volumeOf("HTTP", 1, options{"sourceURL": "https://u:p@h/list"}),
		"sourceURL holds a password, which everybody could read; name a Secret in awsCredentialsSecretName":                         volumeOf("S3", 1, options{"sourceURL": "https://u:p@h/b/"}),
		"endpointURL holds a password, which everybody could read; name a Secret in awsCredentialsSecretName":                       volumeOf("S3", 1, options{"sourceURL": "s3://b/", "endpointURL": "https://u:p@h"}),
		"endpointURL holds a password, which everybody could read; name a Secret in credentialsSecretName":                          volumeOf("OCI", 1, options{"sourceURL": "oci://r/m", "endpointURL": "u:p@h"}),
		"endpointURL holds a password, which everybody could read; name a Secret in pachydermSecretName":                            volumeOf("Pachyderm", 1, options{"endpointURL": "u:p@h"}),
		"pachydermServiceAddress holds a password, which everybody could read; name a Secret in pachydermSecretName":                volumeOf("Pachyderm", 1, options{"pachydermServiceAddress": "http://u:p@h:30600"}),
		"outputURL holds a password, which everybody could read; name a Secret in awsCredentialsSecretName":                         volumeOf("S3", 1, options{"sourceURL": "s3://b/", "outputURL": "s3://u:p@b/"}),
		"sourceURL has the parameter \"X-Amz-Signature\", which everybody could read; name a Secret in credentialsSecretName":       volumeOf("HTTP", 1, options{"sourceURL": "https://h/list?X-Amz-Signature=abc"}),
		"sourceURL is not a URL; write the characters % / ? # @ in names as %25, %2F, %3F, %23 and %40":                             volumeOf("HTTP", 1, options{"sourceURL": "https://u:p/w@h/list"}),
		`option "outputURL" does not belong to sourceType HTTP`:                                                                     volumeOf("HTTP", 1, options{"sourceURL": "https://h/list", "outputURL": "s3://b/"}),
		`option "endpointURL" does not belong to sourceType HTTP`:                                                                   volumeOf("HTTP", 1, options{"sourceURL": "https://h/list", "endpointURL": "https://h"}),
		`option "awsCredentialsSecretName" does not belong to sourceType HTTP`:                                                      volumeOf("HTTP", 1, options{"sourceURL": "https://h/list", "awsCredentialsSecretName": "s"}),
		`resync "true" with sourceType HTTP: only what came from S3 can be uploaded`:                                                volumeOf("HTTP", 1, options{"sourceURL": "https://h/list", "resync": "true"}),
		`parallel "many" has to be`:                                                                                                 volumeOf("S3-Dev", 1, s3Options(options{"parallel": "many"})),
	} {
		_, err := ParseSource(v)
		require.ErrorContains(t, err, want)
	}
	v := volumeOf("S3", 1, s3Options(nil))
	v.Labels = nil
	_, err := ParseSource(v)
	require.EqualError(t, err, "labels cannot be empty; give the volume at least one, such as dataset: NAME")
}

func TestSources(t *testing.T) {
	s, err := ParseSource(volumeOf("S3", 3, s3Options(options{
		"timeoutForDataDownload": "5m", "distributionStrategy": `{"b*":2,"a*":1}`, "endpointURL": "https://e", "region": "r", "dataPath": "/var/datasets",
		"stream": "true", "storageClass": "fast", "evictionPolicy": "LRU", "exclude": "*; rm -rf /",
	})))
	require.NoError(t, err)
	require.Equal(t, []string{"a*", "b*", "b*"}, s.Include, "the same each time")
	require.Equal(t, 5*time.Minute, s.Timeout)
	require.Equal(t, []string{"--endpoint=https://e", "--region=r"}, s.Access)
	require.Equal(t, []string{"--exclude=*; rm -rf /"}, s.Flags, "one argument, and no shell to read it")
	require.Equal(t, "1", s.StreamAfter)
	require.Equal(t, "fast", s.Class)
	require.NotEqual(t, s.Load(0), s.Load(1))
	require.Equal(t, s.Load(1), s.Load(2))

	v := volumeOf("S3", 1, options{"anonymous": "true"})
	v.SourceURL = "s3://b/k"
	s, err = ParseSource(v)
	require.NoError(t, err)
	require.Equal(t, "s3://b/k", s.URL)
	require.Equal(t, []string{"--anonymous"}, s.Access)

	for address, endpoint := range map[string]string{
		"": "http://pachd.default.svc:30600", "pachd.default.svc:650": "http://pachd.default.svc:30600", "pachd.default": "http://pachd.default:30600", "pachd.default:650": "http://pachd.default:30600",
		"10.0.0.1:30650": "http://10.0.0.1:30600", "10.0.0.1:31600": "http://10.0.0.1:31600", "https://p": "https://p",
	} {
		s, err = ParseSource(volumeOf("Pachyderm", 1, options{
			"repo": "r", "branch": "master", "project": "x", "inputPath": "/in/", "outputPath": "../../out/../deep", "pachydermServiceAddress": flexlvmv1.OptionValue(address),
		}))
		require.NoError(t, err)
		require.Equal(t, "pachyderm://x/r@master/in/", s.URL)
		require.Equal(t, "deep", s.Dir, "it stays in the volume")
		require.Equal(t, []string{"--anonymous", "--endpoint=" + endpoint}, s.Access)
	}
}

// Values that the loader accepts are accepted, and passed to it unchanged.
func TestBounds(t *testing.T) {
	for option, texts := range map[string][]flexlvmv1.OptionValue{
		"bandwidth":   {"", "0", "100Mi", "1e6", "1500"},
		"streamAfter": {"", "0", "10", "100Mi", "1G"},
		"parallel":    {"", "0", "1", "1024", "0x10"},
	} {
		for _, text := range texts {
			s, err := ParseSource(volumeOf("S3", 1, s3Options(options{"stream": "true", option: text})))
			require.NoError(t, err, "%s %q", option, text)
			switch {
			case option == "bandwidth":
				require.Equal(t, string(text), s.Bandwidth)
			case option == "streamAfter" && text != "":
				require.Equal(t, string(text), s.StreamAfter)
			case option == "parallel" && text != "":
				require.Equal(t, []string{"--parallel=" + string(text)}, s.Access)
			}
		}
	}
}

// kubelet passes a server and a path to mount unchanged, so only host names, addresses and plain paths are
// accepted.
func TestSharesThatAreNone(t *testing.T) {
	share := func(server, path string) error {
		_, err := ParseSource(volumeOf("NFS", 1, options{"server": flexlvmv1.OptionValue(server), "path": flexlvmv1.OptionValue(path)}))
		return err
	}
	for _, server := range []string{"nas", "nas-1.example.org", "NAS_2", "10.0.0.1", "fd00::1", "[fd00::1]", "::1"} {
		require.NoError(t, share(server, "/sets/a b"), server)
	}
	for _, server := range []string{"--fstab=/var/lib/d", "-o", "nas:/sets", "nas/x", "nas ", "a,b", "[nas]", "fe80::1%eth0", "nas\n", "."} {
		require.ErrorContains(t, share(server, "/sets"), "neither the name nor the address of a host", server)
	}
	for _, at := range []string{"/sets/../home", "/..", "/sets/..", "/a\nb"} {
		require.ErrorContains(t, share("nas", at), "leave out ..", at)
	}
	for _, at := range []string{"/", "/sets/", "/a//b", "/a..b", "/..."} {
		require.NoError(t, share("nas", at), at)
	}
}

func TestAllowedShares(t *testing.T) {
	share := func(server, path string) *corev1.NFSVolumeSource {
		return &corev1.NFSVolumeSource{Server: server, Path: path}
	}
	require.True(t, allowed(share("any", "/"), nil))
	among := []string{"nas:/sets", "10.0.0.1:/"}
	for _, s := range []*corev1.NFSVolumeSource{share("nas", "/sets"), share("nas", "/sets/"), share("nas", "/sets/a"), share("10.0.0.1", "/b"), share("nas", "/x/../sets")} {
		require.True(t, allowed(s, among), s)
	}
	for _, s := range []*corev1.NFSVolumeSource{share("nas", "/"), share("nas", "/setsandmore"), share("nas", "/sets/../home"), share("nas2", "/sets"), share("as", "/sets")} {
		require.False(t, allowed(s, among), s)
	}
	require.False(t, allowed(share("nas", "/sets"), []string{"none"}))
}

// If this digest changes, every dataset of every cluster is loaded again. Think twice before changing this
// test.
func TestLoadStaysTheSame(t *testing.T) {
	s, err := ParseSource(volumeOf("S3", 2, s3Options(options{"distributionStrategy": `{"a*":1,"b*":1}`, "exclude": "*.tmp", "versionID": "7", "endpointURL": "https://e"})))
	require.NoError(t, err)
	s.Include = nil
	here := s.Load(0)
	s.Endpoint = ""
	require.NotEqual(t, here, s.Load(0), "another server is other data")
	require.Equal(t, "9841aef28abe6c27", s.Load(0))
}

// A newly registered Node lacks for a while the labels that other programs set, so it counts as not matching only after
// labelGrace.
func TestNewNodesMayStillMatch(t *testing.T) {
	affinity := requiredAffinity(labelExists("pool"))
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", CreationTimestamp: metav1.NewTime(now)}}
	seen, err := classifyNodes([]*corev1.Node{node}, affinity, nil, now.Add(labelGrace-time.Second))
	require.NoError(t, err)
	require.Empty(t, seen.notMatching)
	require.Empty(t, seen.matching)
	seen, err = classifyNodes([]*corev1.Node{node}, affinity, nil, now.Add(labelGrace))
	require.NoError(t, err)
	require.True(t, seen.notMatching["n"])
}

// The arguments, mounts and permissions of a loader's pod.
func TestLoaderPod(t *testing.T) {
	stage := newStage(t, func(v *flexlvmv1.VolumeConfig) {
		v.Options["timeoutForDataDownload"], v.Options["caConfigMap"] = "5m", "ca"
		v.Tolerations = []corev1.Toleration{{Key: "gpu", Operator: corev1.TolerationOpExists}}
		v.NodeAffinity = &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
			{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "a", Operator: corev1.NodeSelectorOpExists}}},
			{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "b", Operator: corev1.NodeSelectorOpExists}}},
		}}}
	})
	job := stage.task(1, stage.claimed(1).Claim).load()
	pod := job.Spec.Template.Spec
	require.Equal(t, []string{"/fetch"}, pod.Containers[0].Command)
	require.Equal(t, []string{
		"--progress=json", "--result=/dev/termination-log", "--listen=:8090", "--credentials-dir=/credentials", "--ca-file=/authority/ca.crt",
		"--versions=/data", "--memory=128Mi", "--timeout=5m0s", "--sync", "--", "s3://b/p/", "/data",
	}, pod.Containers[0].Args)
	require.Nil(t, pod.Containers[0].ReadinessProbe, "kubelet would warn of it until all is there")
	require.Equal(t, stage.Config.Tolerations, pod.Tolerations)
	require.Equal(t, "v-a-1", pod.Volumes[0].PersistentVolumeClaim.ClaimName)
	require.Equal(t, "s", pod.Volumes[1].Secret.SecretName)
	require.True(t, *pod.Volumes[1].Secret.Optional, "a Secret that is not there is for the loader to tell of")
	require.True(t, *pod.SecurityContext.RunAsNonRoot)
	require.NotZero(t, *pod.SecurityContext.FSGroup)
	require.False(t, *pod.AutomountServiceAccountToken)
	require.Empty(t, pod.Containers[0].Env)
	require.Equal(t, corev1.TerminationMessageFallbackToLogsOnError, pod.Containers[0].TerminationMessagePolicy)
	terms := pod.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	require.Len(t, terms, 2)
	for _, term := range terms { // terms are alternatives, so each has the condition
		require.Contains(t, term.MatchExpressions, labelDoesNotExist(stage.label()))
	}
	require.Len(t, stage.Config.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].MatchExpressions, 1, "the user's own is as it was")
	require.Equal(t, corev1.LabelHostname, pod.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution[0].TopologyKey)
}

func TestClassifyNodes(t *testing.T) {
	node := func(name string, labels map[string]string, taints ...corev1.Taint) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, Spec: corev1.NodeSpec{Taints: taints}}
	}
	nodes := []*corev1.Node{
		node("a", map[string]string{"disk": "fast"}),
		node("b", map[string]string{"disk": "fast"}, corev1.Taint{Key: "gpu", Value: "yes", Effect: corev1.TaintEffectNoSchedule}),
		node("c", map[string]string{"disk": "slow"}),
		node("d", map[string]string{"disk": "fast"}, corev1.Taint{Key: "node.kubernetes.io/not-ready", Effect: corev1.TaintEffectNoExecute}),
	}
	seen, err := classifyNodes(nodes, nil, nil, now)
	require.NoError(t, err)
	require.Len(t, seen.fitting, 3)
	require.Empty(t, seen.notMatching)
	affinity := requiredAffinity(corev1.NodeSelectorRequirement{Key: "disk", Operator: corev1.NodeSelectorOpIn, Values: []string{"fast"}})
	seen, err = classifyNodes(nodes, affinity, []corev1.Toleration{{Key: "gpu", Value: "yes"}}, now)
	require.NoError(t, err)
	require.Equal(t, 3, len(seen.fitting), "a node that is not ready for a while counts")
	require.Equal(t, map[string]bool{"c": true}, seen.notMatching)
	require.Equal(t, map[string]bool{"a": true, "b": true, "d": true}, seen.matching)
	_, err = classifyNodes(nodes, requiredAffinity(corev1.NodeSelectorRequirement{Key: "disk", Operator: corev1.NodeSelectorOpIn}), nil, now)
	require.ErrorContains(t, err, `read nodeAffinity, key "disk"`)
	affinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0] = corev1.NodeSelectorTerm{
		MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"c"}}},
	}
	seen, err = classifyNodes(nodes, affinity, nil, now)
	require.NoError(t, err)
	require.Len(t, seen.fitting, 1)
}

func TestStatusOf(t *testing.T) {
	outcome := func(id string, ready, loaded int32, failed bool) Outcome {
		return Outcome{Status: flexlvmv1.VolumeStatus{ID: id, Replicas: 2, ReadyReplicas: ready, Message: "m"}, Loaded: loaded, Failed: failed}
	}
	unknown := &Observed{Owner: &flexlvmv1.VolumeManager{}, Config: flexlvmv1.VolumeConfig{ID: "a", Replicas: 1}}
	for name, c := range map[string]struct {
		was   flexlvmv1.State
		wants flexlvmv1.State
		of    []Outcome
		done  bool
		state flexlvmv1.State
		says  string
	}{
		"begins":                        {"", "", []Outcome{outcome("a", 0, 0, false)}, false, "Pending", "Beginning sub-resource deployment"},
		"one of two":                    {"Pending", "", []Outcome{outcome("a", 1, 1, false)}, false, "Pending", "Beginning sub-resource deployment"},
		"all":                           {"Pending", "Running", []Outcome{outcome("a", 2, 2, false), outcome("b", 2, 2, false)}, false, "Running", "successfully deployed all sub-resources"},
		"one volume of two":             {"Pending", "", []Outcome{outcome("a", 2, 2, false), outcome("b", 0, 0, false)}, false, "Pending", "Beginning sub-resource deployment"},
		"failed":                        {"Pending", "", []Outcome{outcome("a", 2, 2, false), outcome("b", 0, 0, true)}, false, "Failed", "failed to deploy all the sub-resources"},
		"failed and mended":             {"Failed", "", []Outcome{outcome("a", 2, 2, false)}, false, "Running", "successfully deployed all sub-resources"},
		"heals":                         {"Running", "", []Outcome{outcome("a", 1, 1, false)}, false, "Running", "successfully deployed all sub-resources"},
		"cannot heal, and is used":      {"Running", "", []Outcome{outcome("a", 1, 1, true)}, false, "Running", "successfully deployed all sub-resources"},
		"nothing is left":               {"Running", "", []Outcome{outcome("a", 0, 0, false)}, false, "Pending", "Beginning sub-resource deployment"},
		"is released":                   {"Running", "Completed", []Outcome{outcome("a", 0, 0, false)}, false, "Running", ""},
		"cannot be uploaded":            {"Running", "Completed", []Outcome{outcome("a", 0, 0, true)}, false, "Failed", "failed to deploy all the sub-resources"},
		"was released":                  {"Running", "Completed", []Outcome{outcome("a", 0, 0, false)}, true, "Completed", "released all sub-resources"},
		"a volume goes that was asked":  {"Pending", "", []Outcome{outcome("a", 2, 2, false), {Former: true}}, false, "Running", "successfully deployed all sub-resources"},
		"what is not known never runs":  {"Pending", "", []Outcome{invalidSpec(unknown, errChanged)}, false, "Failed", "failed to deploy all the sub-resources"},
		"and does not run on from then": {"Running", "", []Outcome{invalidSpec(unknown, errChanged)}, false, "Failed", "failed to deploy all the sub-resources"},
	} {
		t.Run(name, func(t *testing.T) {
			owner := &flexlvmv1.VolumeManager{Spec: flexlvmv1.VolumeManagerSpec{State: c.wants}, Status: flexlvmv1.VolumeManagerStatus{State: c.was}}
			got := statusOf(owner, c.of, c.done)
			require.Equal(t, c.state, got.State)
			if c.says != "" {
				require.Equal(t, c.says, got.Message)
			}
		})
	}
	// After an edit, Running does not last while only some replicas are ready.
	owner := &flexlvmv1.VolumeManager{Status: flexlvmv1.VolumeManagerStatus{State: "Running", ObservedGeneration: 1}}
	owner.Generation = 2
	got := statusOf(owner, []Outcome{outcome("a", 1, 1, false)}, false)
	require.Equal(t, flexlvmv1.StatePending, got.State)
	require.Equal(t, "1/2", got.Summary.Ready)
	require.Equal(t, "a: m", got.Summary.Message)
	require.Equal(t, metav1.ConditionTrue, got.Conditions[0].Status)
	require.Equal(t, metav1.ConditionFalse, got.Conditions[1].Status)
}

// The CRD allows exactly the sourceTypes that this package knows.
func TestSourcesAreThoseOfTheCRD(t *testing.T) {
	text, err := os.ReadFile("../../installer/base/crd/flexlvm.io_volumemanagers.yaml")
	require.NoError(t, err)
	var crd any
	require.NoError(t, yaml.Unmarshal(text, &crd))
	var allowed []string
	var look func(any)
	look = func(in any) {
		switch in := in.(type) {
		case []any:
			for _, one := range in {
				look(one)
			}
		case map[string]any:
			for name, one := range in {
				if field, is := one.(map[string]any); is && name == "sourceType" {
					for _, value := range field["enum"].([]any) {
						allowed = append(allowed, value.(string))
					}
				}
				look(one)
			}
		}
	}
	look(crd)
	slices.Sort(allowed) // volumes and volumeConfigs both have the field
	require.Equal(t, sourceTypes(), strings.Join(slices.Compact(allowed), ", "))
}

// A token in place of a user name is refused like a password, because everybody could read it.
func TestTokenInAnAddress(t *testing.T) {
	for _, v := range []flexlvmv1.VolumeConfig{
		volumeOf("HTTP", 1, options{"sourceURL": "https://TOKEN@h/list"}),
		volumeOf("S3", 1, options{"sourceURL": "s3://b/", "endpointURL": "HTTP://TOKEN@h"}),
		volumeOf("S3", 1, options{"sourceURL": "s3://b/", "endpointURL": "TOKEN@h:9000"}),
	} {
		_, err := ParseSource(v)
		require.ErrorContains(t, err, "holds a password")
		require.NotContains(t, err.Error(), "TOKEN")
	}
	_, err := ParseSource(volumeOf("HTTP", 1, options{"sourceURL": "https://h/a@b"}))
	require.NoError(t, err)
}
