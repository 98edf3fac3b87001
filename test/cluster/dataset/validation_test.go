//go:build cluster

package dataset_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// head is the beginning of every VolumeManager of these tests.
const head = "apiVersion: flexlvm.io/v1\nkind: VolumeManager\nmetadata: {name: v, namespace: default}\nspec:\n"

// volumes returns a VolumeManager with these volumes.
func volumes(each ...string) string {
	return head + "  volumes:\n  - " + strings.Join(each, "\n  - ") + "\n"
}

// s3 is a valid volume. with derives others from it.
const s3 = `{id: a, replicas: 1, sourceType: S3, accessMode: ReadWriteOnce, capacity: 5Gi, labels: {k: v}, options: {awsCredentialsSecretName: s, sourceURL: "s3://b/p/"}}`

func with(volume string, pairs ...string) string {
	return strings.NewReplacer(pairs...).Replace(volume)
}

const (
	nfs = `{id: share, replicas: 1, sourceType: NFS, accessMode: ReadOnlyMany, capacity: 5Gi, labels: {k: v}, options: {server: 10.0.0.1, path: /x}}`
	web = `{id: w, replicas: 2, sourceType: HTTP, accessMode: ReadWriteOnce, capacity: 5Gi, labels: {k: v}, options: {sourceURL: "https://h/l"}}`
	pfs = `{id: p, replicas: 2, sourceType: Pachyderm, accessMode: ReadWriteOnce, capacity: 5Gi, labels: {k: v}, options: {repo: r, branch: master, inputPath: in/, outputPath: out}}`
)

func (b *bed) testValidation(t *testing.T) {
	refused := map[string]struct{ manifest, message string }{
		"both names":             {head + "  volumes: [" + s3 + "]\n  volumeConfigs: [" + s3 + "]\n", "set spec.volumes, or its older name spec.volumeConfigs, and not both"},
		"neither name":           {head + "  state: Running\n", "set spec.volumes, or its older name"},
		"no volumes":             {head + "  volumes: []\n", "should have at least 1 items"},
		"same id twice":          {volumes(s3, s3), "Duplicate value"},
		"unknown source":         {volumes(with(s3, "sourceType: S3", "sourceType: FTP")), `Unsupported value: "FTP": supported values: "S3", "S3-Dev", "Pachyderm", "NFS", "Aeon", "HTTP", "HuggingFace", "OCI", "PVC", "GCS", "AzureBlob"`},
		"cloud without a key":    {volumes(with(web, "HTTP", "GCS", "https://h/l", "gs://bkt/")), "credentialsSecretName has to be set in options"},
		"claim without name":     {volumes(with(nfs, "NFS", "PVC", "ReadOnlyMany", "ReadWriteOnce", "server: 10.0.0.1, ", "")), "claimName has to be set in options"},
		"refresh of six fields":  {volumes(with(s3, "{aws", `{refresh: "0 30 3 * * *", aws`)), "refresh has to be \"true\", how often, such as 10m, or the five fields of a cron schedule"},
		"refresh with a zone":    {volumes(with(s3, "{aws", `{refresh: "CRON_TZ=UTC 30 3 * * *", aws`)), "whose time zone is refreshTimeZone"},
		"unknown option":         {volumes(with(s3, "{aws", "{tusk: x, aws")), `unknown option "tusk"`},
		"no labels":              {volumes(with(s3, "labels: {k: v}", "labels: {}")), "labels cannot be empty"},
		"labels left out":        {volumes(with(s3, "labels: {k: v}, ", "")), "labels: Required value"},
		"label that is none":     {volumes(with(s3, "{k: v}", `{k: "a b"}`)), "should match"},
		"label key that is none": {volumes(with(s3, "{k: v}", `{"a b": v}`)), "labels must have valid keys"},
		"label key too long":     {volumes(with(s3, "{k: v}", "{"+strings.Repeat("k", 64)+": v}")), "labels must have valid keys"},
		"label prefix too long":  {volumes(with(s3, "{k: v}", "{"+strings.Repeat("k.", 126)+"kk/k: v}")), "labels must have valid keys"},
		"label prefix of none":   {volumes(with(s3, "{k: v}", "{/k: v}")), "labels must have valid keys"},
		"label in upper case":    {volumes(with(s3, "{k: v}", "{Example.org/k: v}")), "labels must have valid keys"},
		"label key of two parts": {volumes(with(s3, "{k: v}", "{a/b/c: v}")), "labels must have valid keys"},
		"flexlvm label":          {volumes(with(s3, "{k: v}", `{flexlvm.io/dataset: x}`)), "labels cannot begin with flexlvm.io/"},
		"no secret":              {volumes(with(s3, "awsCredentialsSecretName: s, ", "")), "awsCredentialsSecretName key has to be set in options"},
		"no options":             {volumes(with(s3, `, options: {awsCredentialsSecretName: s, sourceURL: "s3://b/p/"}`, "")), "awsCredentialsSecretName key has to be set in options"},
		"no source URL":          {volumes(with(s3, `, sourceURL: "s3://b/p/"`, "")), "sourceURL has to be set in options"},
		"two source URLs":        {volumes(with(s3, `id: a`, `id: a, sourceURL: "s3://c/"`)), "sourceURL and options.sourceURL differ"},
		"S3 read by many":        {volumes(with(s3, "ReadWriteOnce", "ReadOnlyMany")), "access mode has to be ReadWriteOnce"},
		"NFS written once":       {volumes(with(nfs, "ReadOnlyMany", "ReadWriteOnce")), "access mode has to be either ReadWriteMany or ReadOnlyMany"},
		"NFS without server":     {volumes(with(nfs, "server: 10.0.0.1, ", "")), "server has to be set in options"},
		"NFS without path":       {volumes(with(nfs, ", path: /x", "")), "path has to be set in options"},
		"Pachyderm without path": {volumes(with(pfs, ", outputPath: out", "")), "repo, branch, inputPath and outputPath have to be set in options"},
		"two copies for one":     {volumes(with(s3, "S3,", "S3-Dev,", "replicas: 1", "replicas: 2")), "replicas has to be 1 with sourceType S3-Dev"},
		"no replicas":            {volumes(with(s3, "replicas: 1", "replicas: 0")), "replicas has to be 1 or more with sourceType S3"},
		"ids of one claim":       {volumes(s3, with(s3, "id: a", "id: a-0")), "no id may be another volume's id, a dash and a number"},
		"replicas of all":        {volumes(with(s3, "replicas: 1", "replicas: all")), "should match '^All$'"},
		"a number as a string":   {volumes(with(s3, "replicas: 1", `replicas: "3"`)), "should match '^All$'"},
		"too many replicas":      {volumes(with(s3, "replicas: 1", "replicas: 5001")), "replicas has to be a number from 0 to 5000, or All"},
		"fewer than none":        {volumes(with(s3, "replicas: 1", "replicas: -1")), "replicas has to be a number from 0 to 5000, or All"},
		"half a replica":         {volumes(with(s3, "replicas: 1", "replicas: 1.5")), "replicas"},
		"All of one":             {volumes(with(s3, "S3,", "S3-Dev,", "replicas: 1", "replicas: All")), "replicas has to be 1 with sourceType S3-Dev"},
		"All of a share":         {volumes(with(nfs, "replicas: 1", "replicas: All")), "replicas has to be a number with sourceType NFS"},
		"resync of all":          {volumes(with(s3, "replicas: 1", "replicas: All", "{aws", `{resync: "true", aws`)), "replicas cannot be > 1 when resync is set"},
		"resync of two":          {volumes(with(s3, "replicas: 1", "replicas: 2", "{aws", `{resync: "true", aws`)), "replicas cannot be > 1 when resync is set"},
		"capacity of nothing":    {volumes(with(s3, "5Gi", `"0"`)), "capacity has to be a quantity of more than 0"},
		"capacity in words":      {volumes(with(s3, "5Gi", "much")), "capacity has to be a quantity"},
		"list without URL":       {volumes(with(web, `sourceURL: "https://h/l"`, "include: x")), "sourceURL has to be set in options"},
		"list read by many":      {volumes(with(web, "ReadWriteOnce", "ReadOnlyMany")), "access mode has to be ReadWriteOnce"},
		"policy":                 {volumes(with(s3, "{aws", `{evictionPolicy: FIFO, aws`)), "evictionPolicy has to be LRU or Never"},
		"stream":                 {volumes(with(s3, "{aws", `{stream: "yes", aws`)), `stream and anonymous have to be "true" or "false"`},
		"id":                     {volumes(with(s3, "id: a", "id: A_b")), "should match"},
		"state":                  {volumes(s3) + "  state: Done\n", `Unsupported value: "Done"`},
		"field":                  {volumes(with(s3, "id: a", "id: a, replica: 1")), `unknown field "spec.volumes[0].replica"`},
	}
	for name, c := range refused {
		t.Run(name, func(t *testing.T) {
			err := b.try(t, c.manifest)
			require.ErrorContains(t, err, c.message)
			require.NotContains(t, err.Error(), "no such key", "a rule fell over")
		})
	}
	taken := map[string]string{
		"S3":                  volumes(s3),
		"every node":          volumes(with(s3, "replicas: 1", "replicas: All")),
		"the default":         volumes(with(s3, "replicas: 1, ", "")),
		"the older name":      head + "  volumeConfigs: [" + s3 + "]\n  state: \"\"\n",
		"all sources":         volumes(s3, nfs, pfs, web, with(s3, "id: a", "id: d", "S3,", "S3-Dev,")),
		"KVC's place":         volumes(with(s3, "id: a", `id: a, sourceURL: "s3://b/p/"`, `, sourceURL: "s3://b/p/"}`, "}")),
		"longest label":       volumes(with(s3, "{k: v}", "{"+strings.Repeat("k.", 126)+"k/"+strings.Repeat("K", 63)+": v}")),
		"Aeon":                volumes(`{id: c, replicas: 1, sourceType: Aeon, accessMode: ReadWriteOnce, capacity: "100", labels: {k: v}}`),
		"anonymous":           volumes(with(s3, "awsCredentialsSecretName: s", `anonymous: "true"`)),
		"ids of claims apart": volumes(s3, with(s3, "id: a", "id: a-b"), nfs, with(nfs, "id: share", "id: share-1")),
		"booleans of VCK":     volumes(with(s3, "{aws", `{stream: "1", resync: "False", aws`, "replicas: 1", "replicas: 2")),
		"every old option":    volumes(with(s3, "{aws", `{dataPath: /var/datasets, timeoutForDataDownload: 5m, distributionStrategy: '{"*": 1}', resync: "true", endpointURL: "https://x", EndpointURL: "https://s3.amazonaws.com", aws`)),
	}
	for name, manifest := range taken {
		t.Run(name, func(t *testing.T) { require.NoError(t, b.try(t, manifest)) })
	}
	b.testEdits(t)
}

// testEdits checks that an edit that cannot take effect is refused.
func (b *bed) testEdits(t *testing.T) {
	require.NoError(t, b.apply(t, volumes(s3)))
	defer b.kubectl(t, "delete", "vm", "v", "-n", "default")
	for name, c := range map[string]struct{ manifest, message string }{
		"shrunk":     {volumes(with(s3, "5Gi", "4Gi")), "capacity cannot shrink"},
		"retyped":    {volumes(with(s3, "S3,", "S3-Dev,")), "sourceType cannot be changed"},
		"new class":  {volumes(with(s3, "{aws", "{storageClass: x, aws")), "storageClass cannot be changed"},
		"other name": {head + "  volumes: null\n  volumeConfigs: [" + s3 + "]\n", "cannot be renamed"},
	} {
		t.Run(name, func(t *testing.T) { require.ErrorContains(t, b.try(t, c.manifest), c.message) })
	}
	for name, manifest := range map[string]string{
		"grown":        volumes(with(s3, "5Gi", "6144Mi")),
		"more of them": volumes(with(s3, "replicas: 1", "replicas: 3")),
		"all nodes":    volumes(with(s3, "replicas: 1", "replicas: All")),
		"one more":     volumes(s3, nfs),
		"done":         volumes(s3) + "  state: Completed\n",
	} {
		t.Run(name, func(t *testing.T) { require.NoError(t, b.try(t, manifest)) })
	}
}

// try is a dry run of writing a VolumeManager over the existing one.
func (b *bed) try(t *testing.T, manifest string) error {
	t.Helper()
	wanted, old := &unstructured.Unstructured{}, &unstructured.Unstructured{}
	require.NoError(t, yaml.Unmarshal([]byte(manifest), &wanted.Object))
	old.SetGroupVersionKind(wanted.GroupVersionKind())
	err := b.client.Get(t.Context(), client.ObjectKeyFromObject(wanted), old)
	if apierrors.IsNotFound(err) {
		return b.client.Create(t.Context(), wanted, client.DryRunAll, client.FieldValidation(metav1.FieldValidationStrict))
	}
	require.NoError(t, err)
	wanted.SetResourceVersion(old.GetResourceVersion())
	return b.client.Update(t.Context(), wanted, client.DryRunAll)
}
