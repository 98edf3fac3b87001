//go:build vm

package csidoor_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// If cryptsetup is killed before it resumes its mapping, it leaves one without a node in /dev, and without a table
// if it has not loaded that yet. The next mount opens the volume all the same, and if none follows, the mapping is
// removed, also if its volume is inactive.
func TestEncryptedMappingThatWasOnlyBegun(t *testing.T) {
	b := newEncryptedBed(t)
	require.False(t, b.verb("mount").run(t))
	b.write()
	name, id := b.mappings(), strings.ReplaceAll(b.sh("cryptsetup luksUUID "+rawLV), "-", "")
	require.False(t, b.verb("unmount").run(t))
	begin := func(loaded bool) {
		b.sh(fmt.Sprintf("dmsetup create %s --uuid CRYPT-LUKS2-%s-%[1]s --notable", name, id))
		if loaded {
			b.sh(fmt.Sprintf("dmsetup load %s --table '0 8 linear %s 0'", name, rawLV))
		}
	}
	t.Cleanup(func() { b.sh("dmsetup remove " + name + " || true") })
	for _, loaded := range []bool{true, false} {
		begin(loaded)
		require.NoError(t, b.engine().CloseUnused(t.Context()))
		b.sh("! dmsetup info " + name)
		begin(loaded)
		require.False(t, b.verb("mount").run(t))
		b.requireKept()
		require.Equal(t, name, b.mappings())
		require.False(t, b.verb("unmount").run(t))
		require.Empty(t, b.mappings())
	}
	b.sh("lvchange -an flexlvm-test/data")
	begin(false)
	require.NoError(t, b.engine().CloseUnused(t.Context()))
	b.sh("! dmsetup info " + name)
}
