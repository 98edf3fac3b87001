package dataset

import (
	"encoding/json"
	"flag"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
)

var update = flag.Bool("update", false, "write testdata/args.jsonl")

// everyOption has a value for each option of sources that are loaded, and for resync.
var everyOption = options{
	"evictionPolicy": "Never", "storageClass": "fast", "dataPath": "/x", "nodeAffinityGrace": "1h", "outputURL": "s3://out/",
	"timeoutForDataDownload": "5m", "include": "*.a", "exclude": "*.b", "parallel": "4", "bandwidth": "1Mi", "caConfigMap": "ca", "stream": "true", "streamAfter": "10Mi",
	"distributionStrategy": `{"a*":1,"b*":1}`, "refresh": "30 3 * * *", "refreshTimeZone": "UTC", "checksum": "required", "displaceable": "true", "displaces": "Idle",
	"peersSecretName": "peers", "sourceLoaders": "1", "resync": "true",
	"awsCredentialsSecretName": "s", "credentialsSecretName": "s", "serviceAccountName": "account", "anonymous": "true",
	"endpointURL": "https://e", "EndpointURL": "", "region": "r", "addressStyle": "path", "versionID": "7",
	"repo": "r", "branch": "b", "project": "p", "inputPath": "in", "outputPath": "out", "filePath": "in", "recursive": "true", "pachydermServiceAddress": "p:30600", "pachydermSecretName": "s",
	"claimName": "c", "path": "p",
}

// mostOf returns the options of a sourceType, and resync, except those in without, which cannot be combined
// with the others.
func mostOf(kind flexlvmv1.SourceType, url string, without ...string) options {
	out := options{}
	for _, key := range append(slices.Clone(sources[kind].options), "resync") {
		if !slices.Contains(without, key) {
			out[key] = everyOption[key]
		}
	}
	if url != "" {
		out["sourceURL"] = flexlvmv1.OptionValue(url)
	}
	return out
}

// jobsOf returns all Jobs that the controller may create for a volume.
func (s *stage) jobsOf() map[string]*batchv1.Job {
	claim := s.claimed(0).Claim
	task := s.task(0, claim)
	out := map[string]*batchv1.Job{"load": task.load(), "visit": task.visit(false), "refresh": task.visit(true)}
	if s.Source.Target() != "" {
		out["put"] = s.uploadTask(0, claim).upload()
	}
	if s.Source.Mirror {
		out["mirror"] = task.mirror()
	}
	if s.Source.Peers != "" {
		out["serve"] = task.peerServerJob()
		out["copy"] = task.copy(copying{claims: []string{"v-a-1"}, addresses: []string{"10.0.0.1"}, digest: "sha256:a"})
	}
	return out
}

// The arguments of all Jobs are those in testdata/args.jsonl. The tests of cmd/fetch parse that file as the
// loader does.
func TestArgsOfJobs(t *testing.T) {
	many, one := []string{"distributionStrategy"}, []string{"distributionStrategy", "peersSecretName", "sourceLoaders"}
	written := slices.Concat(one, []string{"anonymous", "refresh", "refreshTimeZone", "displaceable"})
	reads := slices.Concat(one, []string{"resync"})
	var b strings.Builder
	for _, c := range []struct {
		name     string
		kind     flexlvmv1.SourceType
		replicas flexlvmv1.ReplicaCount
		options  options
	}{
		{"S3", "S3", 2, mostOf("S3", "s3://b/p/", append(reads, "anonymous")...)},
		{"S3 anonymous", "S3", 2, mostOf("S3", "s3://b/p/", append(reads, "outputURL")...)},
		{"S3 distributed", "S3", 2, mostOf("S3", "s3://b/p", "resync", "outputURL", "include", "peersSecretName", "sourceLoaders")},
		{"S3 from peers", "S3", 2, mostOf("S3", "s3://b/p/", append(many, "resync", "outputURL", "refresh", "refreshTimeZone")...)},
		{"S3 mirrored", "S3", 1, mostOf("S3", "s3://b/p/", append(written, "outputURL", "versionID")...)},
		{"S3 mirrored elsewhere", "S3", 1, mostOf("S3", "s3://b/p/", append(written, "versionID")...)},
		{"S3-Dev", "S3-Dev", 1, mostOf("S3-Dev", "s3://b/p/", append(written, "resync")...)},
		{"Aeon", "Aeon", 1, mostOf("Aeon", "", "resync")},
		{"Pachyderm", "Pachyderm", 2, mostOf("Pachyderm", "", append(reads, "outputURL")...)},
		{"HTTP", "HTTP", 2, mostOf("HTTP", "https://h/list", reads...)},
		{"HuggingFace", "HuggingFace", 2, mostOf("HuggingFace", "hf://org/name", reads...)},
		{"OCI", "OCI", 2, mostOf("OCI", "oci://r/m:v1", reads...)},
		{"PVC", "PVC", 2, mostOf("PVC", "", reads...)},
		{"GCS", "GCS", 2, mostOf("GCS", "gs://bucket/p/", reads...)},
		{"AzureBlob", "AzureBlob", 2, mostOf("AzureBlob", "azblob://account/c/p/", reads...)},
	} {
		s := newStage(t, func(v *flexlvmv1.VolumeConfig) { v.SourceType, v.Replicas, v.Options = c.kind, c.replicas, c.options })
		jobs := s.jobsOf()
		for _, job := range slices.Sorted(maps.Keys(jobs)) {
			line, err := json.Marshal(struct {
				Job  string   `json:"job"`
				Args []string `json:"args"`
			}{c.name + ": " + job, argsOf(jobs[job])})
			require.NoError(t, err)
			b.Write(append(line, '\n'))
		}
	}
	const file = "testdata/args.jsonl"
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(b.String()), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), b.String(), "go test -run TestArgsOfJobs ./internal/dataset -args -update writes %s; then test cmd/fetch", file)
}

// Kubernetes expands $(NAME) in arguments, and $$ to a dollar sign. The loader gets dollar signs unchanged
// nevertheless.
func TestDollarSignsInArgs(t *testing.T) {
	expanded := func(text string) string {
		return regexp.MustCompile(`\$\$|\$\([^)]*\)`).ReplaceAllStringFunc(text, func(found string) string {
			return map[bool]string{true: "$", false: "/root"}[found == "$$"]
		})
	}
	require.Equal(t, "$(HOME) /root $x $", expanded("$$(HOME) $(HOME) $x $$"))
	for _, key := range []string{"a$$b", "$(HOME)/x", "$", "$$(HOME)", "a$b", "$$$"} {
		s := newStage(t, func(v *flexlvmv1.VolumeConfig) {
			v.Replicas, v.Options["resync"] = 1, "true"
			v.Options["sourceURL"], v.Options["exclude"] = flexlvmv1.OptionValue("s3://b/"+key), flexlvmv1.OptionValue(key)
		})
		for name, job := range s.jobsOf() {
			args := argsOf(job)
			for i := range args {
				args[i] = expanded(args[i])
			}
			switch name {
			case "load":
				require.Contains(t, args, "s3://b/"+key)
				require.Contains(t, args, "--exclude="+key)
			case "put", "mirror":
				require.Contains(t, args, "s3://b/"+key)
			}
		}
	}
}

func TestChecksumIsOfLoadsAlone(t *testing.T) {
	s, r := newMirror(t)
	before, working := s.task(0, r.Claim), r.Job
	s.Source.Checksum = "required"
	after := s.task(0, r.Claim)
	require.NotEqual(t, before.attempt, after.attempt, "a load that failed is retried")
	s.Source.Access = append(s.Source.Access, "--checksum=required")
	s.Source.Checksum = ""
	require.Equal(t, s.task(0, r.Claim).attempt, after.attempt, "an upgrade has no load begun anew")
	s.Source.Access, s.Source.Checksum = nil, "required"
	s.requirePlan()
	require.Equal(t, working, r.Job, "the mirror goes on")
}

// While consumers may be writing, a loader's pod has no fsGroup, because kubelet would change the group and the modes
// of their files. A load needs the group to write, and an upload to read what other users wrote.
func TestFilesThatConsumersWriteStayTheirs(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*flexlvmv1.VolumeConfig)
		theirs map[string]bool // by the names of Jobs
	}{
		"read": {func(v *flexlvmv1.VolumeConfig) {
			v.Options["outputURL"], v.Options["peersSecretName"] = "s3://out/", "peers"
		}, map[string]bool{"load": false, "visit": false, "refresh": false, "put": false, "serve": false, "copy": false}},
		"S3-Dev": {func(v *flexlvmv1.VolumeConfig) {
			v.SourceType, v.Replicas, v.Options["outputURL"] = flexlvmv1.SourceS3Dev, 1, "s3://out/"
		}, map[string]bool{"load": false, "visit": true, "refresh": true, "put": false}},
		"resync": {func(v *flexlvmv1.VolumeConfig) { v.Replicas, v.Options["resync"] = 1, "true" },
			map[string]bool{"load": false, "visit": true, "refresh": true, "put": false, "mirror": true}},
	} {
		t.Run(name, func(t *testing.T) {
			theirs := map[string]bool{}
			for name, job := range newStage(t, c.change).jobsOf() {
				security := job.Spec.Template.Spec.SecurityContext
				require.Equal(t, security.FSGroup == nil, security.FSGroupChangePolicy == nil, name)
				theirs[name] = security.FSGroup == nil
				for _, v := range job.Spec.Template.Spec.Volumes { // without fsGroup, kubelet leaves the files of Secrets to root's group
					if v.Secret != nil {
						require.Equal(t, theirs[name], *v.Secret.DefaultMode&0o004 != 0, name)
					}
				}
			}
			require.Equal(t, c.theirs, theirs)
		})
	}
}
