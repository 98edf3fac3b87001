//go:build vm

package csidoor_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// If cryptsetup is killed between loading its table and resuming, it leaves a mapping without a node in
// /dev. The next mount opens the volume all the same, and if none follows, the mapping is removed.
func TestEncryptedMappingThatWasOnlyBegun(t *testing.T) {
	b := newEncryptedBed(t)
	require.False(t, b.verb("mount").run(t))
	b.write()
	name, id := b.mappings(), strings.ReplaceAll(b.sh("cryptsetup luksUUID "+rawLV), "-", "")
	require.False(t, b.verb("unmount").run(t))
	begin := func() {
		b.sh(fmt.Sprintf("dmsetup create %s --uuid CRYPT-LUKS2-%s-%[1]s --notable; dmsetup load %[1]s --table '0 8 linear %[3]s 0'", name, id, rawLV))
	}
	t.Cleanup(func() { b.sh("dmsetup remove " + name + " || true") })
	begin()
	require.NoError(t, b.engine().CloseUnused(t.Context()))
	b.sh("! dmsetup info " + name)
	begin()
	require.False(t, b.verb("mount").run(t))
	b.requireKept()
	require.Equal(t, name, b.mappings())
	require.False(t, b.verb("unmount").run(t))
	require.Empty(t, b.mappings())
}
