package replica_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/flexlvm/flexlvm/internal/replica"
	"github.com/flexlvm/flexlvm/internal/volume"
)

const uid = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"

// TestHash pins the hash: names of volumes on disks and labels of nodes derive from it, so it never changes.
func TestHash(t *testing.T) {
	h := replica.Hash("team", uid, "images")
	require.Equal(t, "c9f542d4f3983c7c", h) // printf 'team/<uid>/images' | sha256sum
	require.True(t, replica.IsHash(h))
	for _, other := range []string{
		replica.Hash("team-", uid, "images"), replica.Hash("team", uid+"0", "images"),
		replica.Hash("team", uid, "images2"), replica.Hash("team", uid, "/images"), replica.Hash("", uid, "team/images"),
	} {
		require.NotEqual(t, h, other)
	}
}

func TestIsHash(t *testing.T) {
	for _, s := range []string{"", "0123456789abcde", "0123456789abcdef0", "0123456789ABCDEF", "0123456789abcde/", "../../../../../."} {
		require.False(t, replica.IsHash(s), "%q", s)
	}
	require.True(t, replica.IsHash("0123456789abcdef"))
}

// TestNames checks that each name is valid for its purpose.
func TestNames(t *testing.T) {
	h := replica.Hash("team", uid, "images")
	_, err := volume.ParseName("name", string(replica.VolumeName(h)))
	require.NoError(t, err)
	require.Empty(t, validation.IsDNS1123Subdomain(replica.ReadersPV(h)))
	require.Empty(t, validation.IsValidLabelValue(h))
	for _, name := range []string{
		replica.NodeLabel(h), replica.LabelDataset, replica.LabelOwner, replica.AnnotationVolumeID, replica.AnnotationEviction,
		replica.AnnotationReaders, replica.AnnotationOwner, replica.AnnotationComplete, replica.AnnotationEvict,
		replica.AnnotationUnlabelled, replica.AnnotationEvictable,
	} {
		require.Empty(t, validation.IsQualifiedName(name), name)
	}
	require.Equal(t, "ds-"+h, string(replica.VolumeName(h)))
	require.Equal(t, "flexlvm.io/ds-"+h, replica.NodeLabel(h))
	require.Equal(t, "flexlvm-ds-"+h, replica.ReadersPV(h))
	require.True(t, replica.IsVolumeName("ds-"+h))
	require.False(t, replica.IsVolumeName(h))
	require.False(t, replica.IsVolumeName("ds-x"))
	got, is := replica.HashOf("ds-" + h)
	require.Equal(t, []any{h, true}, []any{got, is})
	got, is = replica.ReadBy(replica.ReadersPV(h))
	require.Equal(t, []any{h, true}, []any{got, is})
	for _, other := range []string{"", h, "flexlvm-ds-", "flexlvm-ds-mine", "pvc-" + h, "ds-" + h} {
		_, is := replica.ReadBy(other)
		require.False(t, is, other)
	}
}

func TestReadersClaim(t *testing.T) {
	require.Equal(t, "vm-images", replica.ReadersClaim("vm", "images"))
	fits := strings.Repeat("a", 60)
	require.Equal(t, fits+"-id", replica.ReadersClaim(fits, "id"))
	long := replica.ReadersClaim(fits+"a", "id")
	require.Len(t, long, 63)
	require.Empty(t, validation.IsDNS1123Label(long))
	require.NotEqual(t, long, replica.ReadersClaim(fits+"a", "ie"))
	require.Empty(t, validation.IsDNS1123Subdomain(replica.ReadersClaim(strings.Repeat("a.", 30)+strings.Repeat("b", 60), "id")))
	atHyphen := strings.Repeat("a", 50) + "----" + strings.Repeat("b", 40)
	require.Empty(t, validation.IsDNS1123Label(replica.ReadersClaim(atHyphen, "id")))
}

func TestShort(t *testing.T) {
	require.Equal(t, "name-0", replica.Short("name-0", 52))
	short := replica.Short(strings.Repeat("n", 60)+"-0", 52)
	require.Len(t, short, 52)
	require.NotEqual(t, short, replica.Short(strings.Repeat("n", 60)+"-1", 52))
}

func TestEvictionPolicy(t *testing.T) {
	policy, err := volume.ParseEvictionPolicy(replica.AnnotationEviction, "")
	require.NoError(t, err)
	require.Equal(t, volume.EvictNever, policy, "what says nothing is kept")
	policy, err = volume.ParseEvictionPolicy(replica.AnnotationEviction, "LRU")
	require.NoError(t, err)
	require.Equal(t, volume.EvictLRU, policy)
	_, err = volume.ParseEvictionPolicy(replica.AnnotationEviction, "lru")
	require.EqualError(t, err, `flexlvm.io/eviction-policy "lru": is not known; it is one of Never, LRU`)
}
