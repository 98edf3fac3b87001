package dataset

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/fetch/protocol"
)

// Volumes that VCK's controller and client stored are accepted and keep their meaning.
func TestStoredByVCK(t *testing.T) {
	for name, v := range map[string]flexlvmv1.VolumeConfig{
		"its default server":       volumeOf("S3", 1, s3Options(options{"EndpointURL": "https://s3.amazonaws.com", "dataPath": "/var/datasets"})),
		"no resync, two replicas":  volumeOf("S3", 2, s3Options(options{"resync": "false"})),
		"no resync in its words":   volumeOf("S3", 2, s3Options(options{"resync": "0"})),
		"no resync with Pachyderm": volumeOf("Pachyderm", 2, options{"repo": "r", "branch": "b", "inputPath": "/", "outputPath": "o", "resync": "F"}),
	} {
		t.Run(name, func(t *testing.T) {
			s, err := ParseSource(v)
			require.NoError(t, err)
			require.False(t, s.Mirror)
			require.Empty(t, s.Endpoint)
		})
	}
	for _, yes := range []flexlvmv1.OptionValue{"1", "True", "t", "TRUE", "true"} {
		s, err := ParseSource(volumeOf("S3", 1, s3Options(options{"resync": yes})))
		require.NoError(t, err)
		require.True(t, s.Mirror)
	}
	_, err := ParseSource(volumeOf("S3", 1, s3Options(options{"EndpointURL": "http://minio"})))
	require.ErrorContains(t, err, "write endpointURL")

	// In KVC both URLs were fields, and its client wrote them empty if they were not set.
	v := volumeOf("S3", 1, options{"awsCredentialsSecretName": "s"})
	v.SourceURL, v.EndpointURL = "s3://b/p/", "minio-svc.default:9000"
	s, err := ParseSource(v)
	require.NoError(t, err)
	option, err := ParseSource(volumeOf("S3", 1, s3Options(options{"endpointURL": "minio-svc.default:9000"})))
	require.NoError(t, err)
	require.Equal(t, []string{"--endpoint=minio-svc.default:9000"}, s.Access)
	require.Equal(t, option.Load(0), s.Load(0), "it is the same data, wherever its server is named")
	share := volumeOf("NFS", 1, options{"server": "10.0.0.1", "path": "/"})
	_, err = ParseSource(share)
	require.NoError(t, err)
	share.EndpointURL = "http://minio"
	_, err = ParseSource(share)
	require.ErrorContains(t, err, `option "endpointURL" does not belong to sourceType NFS; remove it`)

	spec := flexlvmv1.VolumeManagerSpec{VolumeConfigs: []flexlvmv1.VolumeConfig{
		{ID: "vol1", SourceType: "S3", Replicas: 1}, {ID: "vol1", SourceType: "NFS"}, {ID: "vol1-n2"}, {ID: "vol1", SourceType: "NFS", Replicas: 3},
	}}
	var ids []string
	var replicas []int32
	for _, v := range spec.All() {
		ids, replicas = append(ids, v.ID), append(replicas, int32(v.Replicas))
	}
	require.Equal(t, []string{"vol1", "vol1-n3", "vol1-n2", "vol1-n4"}, ids)
	require.Equal(t, []int32{1, 1, 0, 3}, replicas)
	require.Equal(t, "vol1", spec.Given()[1].ID)

	// No claim of a replica gets the name of another volume's claim for consumers.
	spec.VolumeConfigs = []flexlvmv1.VolumeConfig{{ID: "vol1", SourceType: "S3"}, {ID: "vol1", SourceType: "S3"}, {ID: "vol1-n2-0"}, {ID: "vol1-n3-x"}}
	require.Equal(t, "vol1-n3", spec.All()[1].ID)
}

// VCK matched whole paths below the source, whether or not the source's URL ended in a slash.
func TestDistributionMatchesWholePaths(t *testing.T) {
	v := volumeOf("S3", 3, s3Options(options{"sourceURL": "s3://foo/bar", "distributionStrategy": `{"*0_1*": 2, "*1_1*": 1}`}))
	s, err := ParseSource(v)
	require.NoError(t, err)
	require.Equal(t, "s3://foo/bar/", s.URL)
	owner := &flexlvmv1.VolumeManager{}
	args := func(index int) []string {
		var out []string
		for _, a := range (task{owner: owner, config: v, source: s, index: index, claim: &corev1.PersistentVolumeClaim{}}).loadArgs(false) {
			if strings.Contains(a, "_1") {
				out = append(out, a)
			}
		}
		return out
	}
	require.Equal(t, []string{"--path=*0_1*", "--elsewhere=*1_1*"}, args(1))
	require.Equal(t, []string{"--path=*1_1*", "--elsewhere=*0_1*"}, args(2))
	require.True(t, s.OrObject)
	require.Contains(t, (task{owner: owner, config: v, source: s, claim: &corev1.PersistentVolumeClaim{}}).loadArgs(false), "--or-object", "VCK took one object, too")
	for url, want := range map[flexlvmv1.OptionValue]string{"s3://e2e-test": "s3://e2e-test", "s3://b/a/": "s3://b/a/", "s3://b/a/*.csv": "s3://b/a/*.csv"} {
		v.Options["sourceURL"] = url
		s, err = ParseSource(v)
		require.NoError(t, err)
		require.Equal(t, want, s.URL)
		require.False(t, s.OrObject, url)
	}
	// The loader's notes become advice.
	st := newStage(t, func(v *flexlvmv1.VolumeConfig) { v.Replicas = 1 })
	r := st.completed(0)
	r.Claim.Annotations[annotationLoaded] = `{"state":"complete","notes":["3 of 10 objects match none"]}`
	require.Equal(t, []string{"3 of 10 objects match none"}, st.requirePlan().Advice)
}

// VCK's manifests for Pachyderm named no Secret, and a single file was written to outputPath itself.
func TestPachydermOfVCK(t *testing.T) {
	for name, c := range map[string]struct {
		options options
		flags   []string
		dir     string
	}{
		"a file":                    {options{"inputPath": "s3/test", "outputPath": "test"}, []string{"--name=test"}, ""},
		"a file, further down":      {options{"inputPath": "s3/test", "outputPath": "./a/b"}, []string{"--name=a/b"}, ""},
		"a file in a directory":     {options{"inputPath": "s3/test", "outputPath": "a/"}, nil, "a"},
		"a file in the root":        {options{"inputPath": "/test", "outputPath": "/"}, nil, ""},
		"all below a path":          {options{"inputPath": "s3/", "outputPath": "test"}, nil, "test"},
		"all of it":                 {options{"inputPath": "/", "outputPath": "test"}, nil, "test"},
		"what matches":              {options{"inputPath": "s3/*.csv", "outputPath": "test"}, nil, "test"},
		"the older word":            {options{"filePath": "s3/test"}, nil, ""},
		"what its controller wrote": {options{"inputPath": "s3/", "outputPath": "test", "recursive": "-r", "dataPath": "/var/datasets"}, nil, "test"},
	} {
		t.Run(name, func(t *testing.T) {
			c.options["repo"], c.options["branch"] = "test", "master"
			s, err := ParseSource(volumeOf("Pachyderm", 1, c.options))
			require.NoError(t, err)
			require.Equal(t, c.flags, s.Flags)
			require.Equal(t, c.dir, s.Dir)
			require.Equal(t, []string{"--anonymous", "--endpoint=http://pachd.default.svc:30600"}, s.Access)
			require.Empty(t, s.Secret)
		})
	}
	s, err := ParseSource(volumeOf("Pachyderm", 1, options{"repo": "r", "branch": "b", "inputPath": "s3/test", "outputPath": "o", "distributionStrategy": `{"*": 1}`}))
	require.NoError(t, err)
	require.Equal(t, "pachyderm://r@b/s3/test", s.URL, "one file stays one file")
	require.False(t, s.OrObject)
	s, err = ParseSource(volumeOf("Pachyderm", 1, options{"repo": "r", "branch": "b", "inputPath": "/", "outputPath": "o", "pachydermSecretName": "token"}))
	require.NoError(t, err)
	require.Equal(t, "token", s.Secret)
	require.NotContains(t, s.Access, "--anonymous")
}

// Another server has other data.
func TestServerIsPartOfTheData(t *testing.T) {
	s := newStage(t, func(v *flexlvmv1.VolumeConfig) { v.Replicas, v.Options["endpointURL"] = 1, "http://minio:9000/" })
	s.completed(0)
	s.requirePlan()
	for _, same := range []string{"https://minio:9000", "minio:9000", "http://MINIO:9000"} {
		require.Equal(t, s.Source.Endpoint, protocol.EndpointOf(same))
	}
	require.Empty(t, protocol.EndpointOf("https://s3.amazonaws.com"))
	s.Source.Endpoint = "other:9000"
	require.Zero(t, s.requirePlan("unlabel node-0").Status.ReadyReplicas)
	// The same for a change from the default server to another.
	s = newStage(t, func(v *flexlvmv1.VolumeConfig) { v.Replicas = 1 })
	s.completed(0)
	s.Source.Endpoint = "other:9000"
	s.requirePlan("unlabel node-0")
}

// docs/from-vck.md describes each option of VCK, and docs/datasets.md all other options.
func TestOptionsAreDocumented(t *testing.T) {
	moved, err := os.ReadFile("../../docs/from-vck.md")
	require.NoError(t, err)
	_, table, found := strings.Cut(string(moved), "## Every option")
	require.True(t, found)
	table, _, _ = strings.Cut(table, "| published manifest |")
	documented := map[string]bool{}
	for line := range strings.Lines(table) {
		cells := strings.Split(line, "|")
		if len(cells) != 5 || !strings.Contains(cells[1], "`") {
			continue
		}
		require.NotEmpty(t, strings.TrimSpace(cells[2]), line)
		require.NotEmpty(t, strings.TrimSpace(cells[3]), line)
		for _, name := range strings.Split(cells[1], ",") {
			documented[strings.Trim(name, " `")] = true
		}
	}
	require.Equal(t, []string{
		"EndpointURL", "awsCredentialsSecretName", "branch", "dataPath", "distributionStrategy", "endpointURL", "filePath", "inputPath", "outputPath",
		"pachydermServiceAddress", "path", "recursive", "repo", "resync", "server", "sourceURL", "timeoutForDataDownload",
	}, slices.Sorted(maps.Keys(documented)))
	ours, err := os.ReadFile("../../docs/datasets.md")
	require.NoError(t, err)
	definition, err := os.ReadFile("../../installer/base/crd/flexlvm.io_volumemanagers.yaml")
	require.NoError(t, err)
	for kind, source := range sources {
		for _, option := range source.options {
			require.Contains(t, string(definition), "'"+option+"'", kind)
			if !documented[option] {
				require.Contains(t, string(ours), "`"+option+"`", kind)
			}
		}
	}
}
