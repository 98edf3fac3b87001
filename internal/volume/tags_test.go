package volume

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var good = Tags{
	State: Ready, FS: "0d9ee5ba-5b9b-4c8e-8d7e-0f4b8f0c6a11", Size: GiB,
	Namespace: "db", Cluster: "6e2c0b0a-92a7-4b52-a9f5-2f7b3f1f8a01", Kind: Claim,
	Reclaim: ReclaimImmediate, Wipe: WipeZero,
}

func TestTagsRoundTrip(t *testing.T) {
	without := good
	without.Cluster, without.Reclaim, without.Wipe = "", ReclaimLazy, WipeNone
	half := good
	half.State, half.Clone = Creating, "1d9ee5ba-5b9b-4c8e-8d7e-0f4b8f0c6a11"
	half.LUKS = "2d9ee5ba-5b9b-4c8e-8d7e-0f4b8f0c6a11"
	encrypted := good
	encrypted.LUKS = half.LUKS
	ext4 := good
	ext4.FSType = Ext4
	require.Contains(t, ext4.Strings(), "flexlvm.fstype=ext4")
	require.NotContains(t, strings.Join(good.Strings(), " "), "fstype")
	raw := good
	raw.FSType = Raw
	zeroed := raw
	zeroed.Zeroed = 8 * MiB
	fixed := ext4
	fixed.Fixed = true
	for _, want := range []Tags{good, without, half, encrypted, ext4, raw, zeroed, fixed} {
		got, err := ParseTags(append(want.Strings(), "somebody.else=1"))
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	for _, tag := range half.Strings() {
		require.Regexp(t, `^[A-Za-z0-9_+.=/!:&#-]+$`, tag, "LVM must take it")
	}
}

func TestCopied(t *testing.T) {
	raw := Tags{FSType: Raw, Size: 5*MiB + 1}
	require.Equal(t, 5*MiB+Block, raw.Copied(16*MiB), "a growth that was killed has not zeroed the rest")
	require.Equal(t, 4*MiB, raw.Copied(4*MiB))
	encrypted := Tags{FSType: Raw, Size: 5*MiB + 1, LUKS: "2d9ee5ba-5b9b-4c8e-8d7e-0f4b8f0c6a11"}
	require.Equal(t, LUKSHeader+5*MiB+Block, encrypted.Copied(32*MiB), "its header comes first")
	require.Equal(t, 16*MiB, Tags{Size: 5 * MiB}.Copied(16*MiB), "a file system may reach to the end of its device")
}

func TestTagsThatMakeNoSense(t *testing.T) {
	replace := func(prefix, with string) []string {
		var out []string
		for _, tag := range good.Strings() {
			if strings.HasPrefix(tag, prefix) && tag != TagOwned {
				tag = with
			}
			out = append(out, tag)
		}
		return slices.DeleteFunc(out, func(s string) bool { return s == "" })
	}
	for name, tags := range map[string][]string{
		"not ours":                   {"backup=yes"},
		"only the mark":              {TagOwned},
		"no state":                   replace("flexlvm.state=", ""),
		"unknown state":              replace("flexlvm.state=", "flexlvm.state=happy"),
		"file system":                append(good.Strings(), "flexlvm.fstype=zfs"),
		"zeroed files":               append(good.Strings(), "flexlvm.zeroed=4096"),
		"zeroed in words":            append(good.Strings(), "flexlvm.fstype=block", "flexlvm.zeroed=all"),
		"two states":                 append(good.Strings(), "flexlvm.state=creating"),
		"no fs":                      replace("flexlvm.fs=", ""),
		"fs upper case":              replace("flexlvm.fs=", "flexlvm.fs=0D9EE5BA-5B9B-4C8E-8D7E-0F4B8F0C6A11"),
		"size in words":              replace("flexlvm.size=", "flexlvm.size=large"),
		"negative size":              replace("flexlvm.size=", "flexlvm.size=-1"),
		"namespace":                  replace("flexlvm.ns=", "flexlvm.ns=a/b"),
		"no namespace":               replace("flexlvm.ns=", ""),
		"kind":                       replace("flexlvm.kind=", "flexlvm.kind=cat"),
		"cluster":                    replace("flexlvm.cluster=", "flexlvm.cluster="),
		"reclaim":                    replace("flexlvm.reclaim=", "flexlvm.reclaim=never"),
		"wipe":                       replace("flexlvm.wipe=", "flexlvm.wipe=twice"),
		"a copy of none":             append(good.Strings(), "flexlvm.clone="),
		"a copy of a name":           append(good.Strings(), "flexlvm.clone=pvc-1"),
		"how much is copied of none": append(good.Strings(), FillCopied.Tag()),
		"a copy in an unknown stage": append(good.Strings(), "flexlvm.clone=1d9ee5ba-5b9b-4c8e-8d7e-0f4b8f0c6a11", "flexlvm.fill=half"),
		"a copy of itself":           append(good.Strings(), "flexlvm.clone="+good.FS),
		"in no container":            append(good.Strings(), "flexlvm.luks="),
		"fixed to what":              append(good.Strings(), "flexlvm.fixed=4096"),
		"in a name":                  append(good.Strings(), "flexlvm.luks=pvc-1"),
		"of a later day":             append(good.Strings(), "flexlvm.colour=red"),
		"no value at all":            append(good.Strings(), "flexlvm.colour"),
	} {
		_, err := ParseTags(tags)
		var field *FieldError
		require.ErrorAs(t, err, &field, name)
	}
}

func FuzzParseTags(f *testing.F) {
	f.Add(strings.Join(good.Strings(), ","))
	f.Add(strings.Join(good.Strings(), ",") + ",flexlvm.clone=1d9ee5ba-5b9b-4c8e-8d7e-0f4b8f0c6a11")
	f.Add("flexlvm,flexlvm.state=ready,flexlvm.fs=,flexlvm.size=0")
	f.Fuzz(func(t *testing.T, s string) {
		tags, err := ParseTags(strings.Split(s, ","))
		if err != nil {
			return
		}
		again, err := ParseTags(tags.Strings())
		require.NoError(t, err)
		require.Equal(t, tags, again)
	})
}
