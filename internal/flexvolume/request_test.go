package flexvolume

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// with returns the options of a valid call with the changes. An empty value removes a key.
func with(changes map[string]string) string {
	object := map[string]string{
		"volumeGroup":                       "flexlvm",
		"size":                              "1073741824",
		"kubernetes.io/fsType":              "",
		"kubernetes.io/readwrite":           "rw",
		"kubernetes.io/pvOrVolumeName":      "pvc-6e0bf2d2-3f6d-4b0e-9a55-0b9a8a3f7c11",
		"kubernetes.io/pod.name":            "web-0",
		"kubernetes.io/pod.namespace":       "shop",
		"kubernetes.io/pod.uid":             "b2c1",
		"kubernetes.io/serviceAccount.name": "default",
	}
	for k, v := range changes {
		if v == "" {
			delete(object, k)
			continue
		}
		object[k] = v
	}
	b, err := json.Marshal(object)
	if err != nil {
		panic(err)
	}
	return string(b)
}

var mountNeeds = []string{keyName, keyReadWrite, keyNamespace}

func TestParseRequestUnderstands(t *testing.T) {
	spec := volume.Spec{
		Group: "flexlvm", Name: "pvc-6e0bf2d2-3f6d-4b0e-9a55-0b9a8a3f7c11", Size: volume.GiB,
		Layout: volume.Linear, Kind: volume.Claim, Namespace: "shop",
	}
	all := spec
	all.GroupUUID = "Fd4uCt-7lvd-Lkxg-5VKu-rGYm-Zhkc-0NpEMk"
	all.Inodes, all.Cluster, all.Kind, all.Name = 5000, "3f2b6a40-8d1c-4b5e-9c55-1d2e3f405162", volume.Dataset, "imagenet"

	striped := func(stripes, kib int) volume.Spec {
		s := spec
		s.Layout, s.Stripes, s.StripeKiB = volume.Striped, stripes, kib
		return s
	}
	raid1 := spec
	raid1.Layout, raid1.Mirrors = volume.Raid1, 2
	thin := spec
	thin.Layout, thin.ThinPool = volume.Thin, "thinpool"
	reader := spec
	reader.Kind, reader.Name, reader.ReadOnly = volume.Dataset, "ds-0123456789abcdef", true
	writer := reader
	writer.ReadOnly = false
	replica := func(readOnly string) string {
		return with(map[string]string{"kind": "dataset", "volume": "ds-0123456789abcdef", "readOnly": readOnly})
	}
	clone := thin
	clone.CloneOf = "pvc-1"
	ext4 := spec
	ext4.FSType = volume.Ext4
	for name, c := range map[string]struct {
		options string
		want    request
	}{
		"only what is required": {with(nil), request{spec: spec, pod: "web-0"}},
		"read-only":             {with(map[string]string{"kubernetes.io/readwrite": "ro"}), request{spec: spec, pod: "web-0", readOnly: true}},
		"xfs by name":           {with(map[string]string{"kubernetes.io/fsType": "xfs"}), request{spec: spec, pod: "web-0"}},
		"ext4":                  {with(map[string]string{"kubernetes.io/fsType": "ext4", "fsType": "ext4"}), request{spec: ext4, pod: "web-0"}},
		"a key of kubelet's that is new": {
			with(map[string]string{"kubernetes.io/mounterArgs.FsGroup": "2000", "kubernetes.io/mounterArgs.New": "x"}),
			request{spec: spec, pod: "web-0"},
		},
		"all options": {with(map[string]string{
			"volumeGroupUUID": all.GroupUUID, "layout": "linear", "inodes": "5000",
			"clusterUID": all.Cluster, "kind": "dataset", "volume": "imagenet",
		}), request{spec: all, pod: "web-0"}},
		"striped":             {with(map[string]string{"layout": "striped"}), request{spec: striped(0, 0), pod: "web-0"}},
		"striped, as it must": {with(map[string]string{"layout": "striped", "stripes": "3", "stripeSizeKiB": "256"}), request{spec: striped(3, 256), pod: "web-0"}},
		"raid1":               {with(map[string]string{"layout": "raid1", "mirrors": "2"}), request{spec: raid1, pod: "web-0"}},
		"thin":                {with(map[string]string{"layout": "thin", "thinPool": "thinpool"}), request{spec: thin, pod: "web-0"}},
		"reader of a replica": {replica("true"), request{spec: reader, pod: "web-0"}},
		"its loader, in full": {replica("false"), request{spec: writer, pod: "web-0"}},
		"clone":               {with(map[string]string{"layout": "thin", "thinPool": "thinpool", "cloneOf": "pvc-1"}), request{spec: clone, pod: "web-0"}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parseRequest(c.options, mountNeeds...)
			require.NoError(t, err)
			require.Equal(t, c.want, got)
		})
	}
}

func TestParseRequestRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		options string
		field   string // the beginning of the message
		says    string // what the message contains
	}{
		"nothing":                           {"", "options", "empty"},
		"no JSON":                           {"volumeGroup=flexlvm", "options", "not valid JSON"},
		"half":                              {`{"volumeGroup":"flexlvm"`, "options", "middle"},
		"half a key":                        {`{"volumeGr`, "options", "JSON"},
		"comma at the end":                  {`{"volumeGroup":"flexlvm",}`, "options", "not valid JSON"},
		"no colon":                          {`{"volumeGroup" "flexlvm"}`, "options", "not valid JSON"},
		"array":                             {`["flexlvm"]`, "options", "an array"},
		"string":                            {`"flexlvm"`, "options", "a string"},
		"number":                            {`7`, "options", "a number"},
		"null":                              {`null`, "options", "null"},
		"true":                              {`true`, "options", "a boolean"},
		"two objects":                       {`{}{}`, "options", "after the JSON object"},
		"rubbish after":                     {with(nil) + "x", "options", "after the JSON object"},
		"empty object":                      {`{}`, "kubernetes.io/pod.namespace, kubernetes.io/pvOrVolumeName, kubernetes.io/readwrite, size, volumeGroup", "missing"},
		"size is a number":                  {`{"size":1073741824}`, "size", "is a number"},
		"size is huge":                      {`{"size":1e99999}`, "size", "is a number"},
		"size is null":                      {`{"size":null}`, "size", "is null"},
		"size is true":                      {`{"size":true}`, "size", "is a boolean"},
		"size is an object":                 {`{"size":{"a":{}}}`, "size", "is an object"},
		"size is an array":                  {`{"size":["1"]}`, "size", "is an array"},
		"size twice":                        {`{"size":"1","size":"2"}`, "size", "is given twice"},
		"size twice, one written otherwise": {`{"size":"1","\u0073ize":"2"}`, "size", "is given twice"},

		"no group":             {with(map[string]string{"volumeGroup": ""}), "volumeGroup", "missing"},
		"no size":              {with(map[string]string{"size": ""}), "size", "missing"},
		"no namespace":         {with(map[string]string{"kubernetes.io/pod.namespace": ""}), "kubernetes.io/pod.namespace", "missing"},
		"no name":              {with(map[string]string{"kubernetes.io/pvOrVolumeName": ""}), "kubernetes.io/pvOrVolumeName", "missing"},
		"no readwrite":         {with(map[string]string{"kubernetes.io/readwrite": ""}), "kubernetes.io/readwrite", "missing"},
		"unknown option":       {with(map[string]string{"sise": "1"}), "sise", "the options are volumeGroup, volumeGroupUUID, volume, size, layout,"},
		"two unknown":          {with(map[string]string{"b": "1", "a": "1"}), "a, b", "not an option"},
		"case of an option":    {with(map[string]string{"Size": "1"}), "Size", "not an option"},
		"foreign domain":       {with(map[string]string{"x.kubernetes.io/pod.namespace": "kube-system"}), "x.kubernetes.io/pod.namespace", "not an option"},
		"control characters":   {with(map[string]string{"a\nb\x1b[2J": "1"}), `"a\nb\x1b[2J"`, "not an option"},
		"secret":               {with(map[string]string{"kubernetes.io/secret/password": "aHVudGVyMg=="}), "kubernetes.io/secret", "remove secretRef"},
		"secret and unknown":   {with(map[string]string{"kubernetes.io/secret/password": "aHVudGVyMg==", "x": "aHVudGVyMg=="}), "kubernetes.io/secret", "remove secretRef"},
		"secret twice":         {`{"kubernetes.io/secret/a":"aHVudGVyMg==","kubernetes.io/secret/a":"aHVudGVyMg=="}`, "kubernetes.io/secret", "twice"},
		"secret of a type":     {`{"kubernetes.io/secret/a":["aHVudGVyMg=="]}`, "kubernetes.io/secret", "an array"},
		"secret, then no JSON": {`{"kubernetes.io/secret/a":"aHVudGVyMg==" aHVudGVyMg== }`, "options", "not valid JSON"},

		"size negative":      {with(map[string]string{"size": "-1"}), `size "-1"`, "whole decimal number"},
		"size zero":          {with(map[string]string{"size": "0"}), `size "0"`, "greater than 0"},
		"size a fraction":    {with(map[string]string{"size": "1.5"}), `size "1.5"`, "whole decimal number"},
		"size with a unit":   {with(map[string]string{"size": "1Gi"}), `size "1Gi"`, "no unit"},
		"size with a space":  {with(map[string]string{"size": " 1"}), `size " 1"`, "whole decimal number"},
		"size hexadecimal":   {with(map[string]string{"size": "0x10"}), `size "0x10"`, "whole decimal number"},
		"size over int64":    {with(map[string]string{"size": "9223372036854775808"}), "size", "most that is supported"},
		"size over all":      {with(map[string]string{"size": strings.Repeat("9", 300)}), "size", "most that is supported"},
		"size over the most": {with(map[string]string{"size": "549755813888001"}), "size", "most that is supported"},

		"group with a slash":      {with(map[string]string{"volumeGroup": "a/b"}), `volumeGroup "a/b"`, "holds '/'"},
		"group ..":                {with(map[string]string{"volumeGroup": ".."}), `volumeGroup ".."`, "directory"},
		"group -f":                {with(map[string]string{"volumeGroup": "-f"}), `volumeGroup "-f"`, "hyphen"},
		"volume with a slash":     {with(map[string]string{"volume": "a/b"}), `volume "a/b"`, "holds '/'"},
		"volume ..":               {with(map[string]string{"volume": ".."}), `volume ".."`, "directory"},
		"volume -f":               {with(map[string]string{"volume": "-f"}), `volume "-f"`, "hyphen"},
		"volume of LVM's":         {with(map[string]string{"volume": "pvmove0"}), `volume "pvmove0"`, "LVM reserves"},
		"volume of LVM's, within": {with(map[string]string{"volume": "a_tmeta"}), `volume "a_tmeta"`, "LVM reserves"},
		"volume of 300 letters":   {with(map[string]string{"volume": strings.Repeat("a", 300)}), "volume", "300 characters"},
		"volume doomed":           {with(map[string]string{"volume": "doomed_a"}), `volume "doomed_a"`, "being removed"},
		"name with a slash":       {with(map[string]string{"kubernetes.io/pvOrVolumeName": "../x"}), `kubernetes.io/pvOrVolumeName "../x"`, "holds '/'"},
		"name of 300 letters":     {with(map[string]string{"kubernetes.io/pvOrVolumeName": strings.Repeat("a", 300)}), "kubernetes.io/pvOrVolumeName", "300 characters"},
		"names too long together": {with(map[string]string{"volumeGroup": strings.Repeat("g", 60), "volume": strings.Repeat("v", 90)}), "volume", "too long"},

		"thin, no pool":            {with(map[string]string{"layout": "thin"}), "thinPool", "is required with layout thin"},
		"thin, a path":             {with(map[string]string{"layout": "thin", "thinPool": "../x"}), `thinPool "../x"`, "holds '/'"},
		"clone, a path":            {with(map[string]string{"layout": "thin", "thinPool": "p", "cloneOf": "../x"}), `cloneOf "../x"`, "holds '/'"},
		"clone of the pool":        {with(map[string]string{"layout": "thin", "thinPool": "p", "cloneOf": "p"}), `cloneOf "p"`, "its thin pool"},
		"clone of doomed":          {with(map[string]string{"layout": "thin", "thinPool": "p", "cloneOf": "doomed_x"}), `cloneOf "doomed_x"`, "being removed"},
		"clone, a replica":         {with(map[string]string{"layout": "thin", "thinPool": "p", "cloneOf": "x", "kind": "dataset"}), `cloneOf "x"`, "filled from its source"},
		"stripes in thin":          {with(map[string]string{"layout": "thin", "thinPool": "p", "stripes": "2"}), `stripes "2"`, "belongs to layout striped"},
		"layout unknown":           {with(map[string]string{"layout": "raid9"}), `layout "raid9"`, "linear, striped"},
		"stripes in raid1":         {with(map[string]string{"layout": "raid1", "stripes": "2"}), `stripes "2"`, "belongs to layout striped"},
		"one stripe":               {with(map[string]string{"layout": "striped", "stripes": "1"}), `stripes "1"`, "fewest devices"},
		"stripe of 3 KiB":          {with(map[string]string{"layout": "striped", "stripeSizeKiB": "3"}), `stripeSizeKiB "3"`, "power of two"},
		"no mirrors":               {with(map[string]string{"layout": "raid1", "mirrors": "0"}), `mirrors "0"`, "greater than 0"},
		"stripes in linear":        {with(map[string]string{"stripes": "2"}), `stripes "2"`, "belongs to layout striped"},
		"another's dataset":        {with(map[string]string{"kind": "dataset", "readOnly": "true", "ownerNamespace": "library"}), `ownerNamespace "library"`, "is for the CSI driver alone"},
		"a device":                 {with(map[string]string{"volumeMode": "Block"}), `volumeMode "Block"`, "is for the CSI driver alone"},
		"encrypted":                {with(map[string]string{"encrypted": "true"}), `encrypted "true"`, "is for the CSI driver alone"},
		"mirrors in linear":        {with(map[string]string{"mirrors": "1"}), `mirrors "1"`, "belongs to layout raid1"},
		"thinPool in linear":       {with(map[string]string{"thinPool": "p"}), `thinPool "p"`, "belongs to layout thin"},
		"group UUID":               {with(map[string]string{"volumeGroupUUID": "x"}), `volumeGroupUUID "x"`, "not an LVM UUID"},
		"group UUID empty":         {`{"volumeGroupUUID":"","volumeGroup":"a","size":"1","kubernetes.io/readwrite":"rw","kubernetes.io/pvOrVolumeName":"a","kubernetes.io/pod.namespace":"a"}`, "volumeGroupUUID", "not an LVM UUID"},
		"inodes":                   {with(map[string]string{"inodes": "many"}), `inodes "many"`, "whole decimal number"},
		"kind":                     {with(map[string]string{"kind": "cache"}), `kind "cache"`, "claim, dataset or snapshot"},
		"readOnly":                 {with(map[string]string{"kind": "dataset", "readOnly": "yes"}), `readOnly "yes"`, "neither true nor false"},
		"readOnly in capitals":     {with(map[string]string{"kind": "dataset", "readOnly": "True"}), `readOnly "True"`, "neither true nor false"},
		"readOnly of a claim":      {with(map[string]string{"readOnly": "true"}), `readOnly "true"`, "belongs to kind dataset"},
		"cluster":                  {with(map[string]string{"clusterUID": "a b"}), `clusterUID "a b"`, "not a UID"},
		"readwrite":                {with(map[string]string{"kubernetes.io/readwrite": "RW"}), `kubernetes.io/readwrite "RW"`, "neither"},
		"fsType":                   {with(map[string]string{"kubernetes.io/fsType": "ext4"}), `kubernetes.io/fsType "ext4"`, "fsType is xfs; let both say the same"},
		"fsType of another driver": {with(map[string]string{"kubernetes.io/fsType": "btrfs"}), `kubernetes.io/fsType "btrfs"`, "it is xfs or ext4"},
		"fsType as option":         {with(map[string]string{"fsType": "ext4", "kubernetes.io/fsType": "xfs"}), `kubernetes.io/fsType "xfs"`, "fsType is ext4"},
		"namespace":                {with(map[string]string{"kubernetes.io/pod.namespace": "a/b"}), `kubernetes.io/pod.namespace "a/b"`, "not the name of a namespace"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parseRequest(c.options, mountNeeds...)
			require.Error(t, err)
			var field *volume.FieldError
			require.ErrorAs(t, err, &field)
			require.True(t, strings.HasPrefix(err.Error(), c.field), err.Error())
			require.Contains(t, err.Error(), c.says)
			require.NotContains(t, err.Error(), "aHVudGVyMg", "a secret must not get into a message")
			require.NotContains(t, err.Error(), "password", "nor the name of an entry of it")
			require.Less(t, len(err.Error()), 1000)
		})
	}
}

func TestParseRequestManyUnknownOptions(t *testing.T) {
	changes := map[string]string{}
	for i := range 1000 {
		changes[strings.Repeat("k", i+1)] = "v"
	}
	_, err := parseRequest(with(changes), mountNeeds...)
	require.ErrorContains(t, err, "and 995 more")
	require.Less(t, len(err.Error()), 1000)
}

// FuzzParseRequest checks that parsing ends without a panic whatever kubelet passes, and that an
// accepted request is a valid spec whose values all come from the options.
func FuzzParseRequest(f *testing.F) {
	f.Add(with(nil))
	f.Add(with(map[string]string{"kubernetes.io/readwrite": "ro", "volume": "imagenet", "kind": "dataset", "inodes": "7"}))
	f.Add(`{"size":1e999,"volumeGroup":[[[[`)
	f.Add("{\"\xff\":\"\xfe\"}")
	f.Fuzz(func(t *testing.T, text string) {
		r, err := parseRequest(text, mountNeeds...)
		var object map[string]any
		valid := json.Unmarshal([]byte(text), &object) == nil
		if err != nil {
			var field *volume.FieldError
			require.ErrorAs(t, err, &field)
			require.NotEmpty(t, field.Field)
			require.Less(t, len(err.Error()), maxMessage)
			for key := range object {
				if valid && isSecret(key) {
					// The message is one of these fixed sentences, so it contains no value.
					require.Regexp(t, `^(kubernetes\.io/secret: is not accepted: kubelet writes.*PersistentVolume|.*: is given twice; give it once|.*: is .*; options are strings, so put it in quotes)$`, err.Error())
				}
			}
			return
		}
		require.True(t, valid, "accepted what encoding/json does not")
		require.NoError(t, r.spec.Validate())
		require.Equal(t, object["volumeGroup"], string(r.spec.Group))
		require.Equal(t, object["kubernetes.io/pod.namespace"], r.spec.Namespace)
		require.Equal(t, object["kubernetes.io/readwrite"] == "ro", r.readOnly)
		if v, there := object["volume"]; there {
			require.Equal(t, v, string(r.spec.Name))
		} else {
			require.Equal(t, object["kubernetes.io/pvOrVolumeName"], string(r.spec.Name))
		}
	})
}

// FuzzParseCall checks that any argument list yields a call, a refusal or "not supported".
func FuzzParseCall(f *testing.F) {
	f.Add("mount", "/x", with(nil), "", "", "", 2)
	f.Add("expandfs", with(nil), "", "/x", "2", "1", 5)
	f.Add("unmount", "/x", "", "", "", "", 1)
	f.Add("init", "", "", "", "", "", 0)
	f.Add("getvolumename", "{}", "", "", "", "", 1)
	f.Fuzz(func(t *testing.T, verb, a, b, c, d, e string, n int) {
		args := []string{verb, a, b, c, d, e}[:1+max(0, min(n, 5))]
		got, ok, err := parseCall(args)
		if ok && err == nil && verb != verbInit {
			require.NotNil(t, got.do)
			require.Positive(t, got.deadline)
		}
		if !ok {
			require.NoError(t, err)
		}
	})
}

// TestOptionsAreUnderstood checks that the driver reads the options that the rest of flexlvm writes
// into a PersistentVolume.
func TestOptionsAreUnderstood(t *testing.T) {
	least := volume.Spec{
		Group: "flexlvm", Name: "pvc-6e0bf2d2-3f6d-4b0e-9a55-0b9a8a3f7c11", Size: volume.GiB,
		Layout: volume.Linear, Kind: volume.Claim, Namespace: "shop",
	}
	all := least
	all.GroupUUID, all.Inodes, all.Cluster = "Fd4uCt-7lvd-Lkxg-5VKu-rGYm-Zhkc-0NpEMk", 5000, "3f2b6a40-8d1c-4b5e-9c55-1d2e3f405162"
	reader := least
	reader.Kind, reader.ReadOnly = volume.Dataset, true
	for _, want := range []volume.Spec{least, all, reader} {
		got, err := parseRequest(with(want.Options()), mountNeeds...)
		require.NoError(t, err)
		require.Equal(t, want, got.spec)
	}
}
