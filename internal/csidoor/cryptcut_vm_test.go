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
	create := func() { b.sh(fmt.Sprintf("dmsetup create %s --uuid CRYPT-LUKS2-%s-%[1]s --notable", name, id)) }
	load := func() {
		create()
		b.sh(fmt.Sprintf("dmsetup load %s --table '0 8 linear %s 0'", name, rawLV))
	}
	cleared := func() {
		load()
		b.sh("dmsetup clear " + name)
	}
	t.Cleanup(func() { b.sh("dmsetup remove " + name + " || true") })
	for state, begin := range map[string]func(){"created": create, "loaded": load, "cleared": cleared} {
		if state != "created" { // sysfs shows a mapping only once it has had a table
			begin()
			require.NoError(t, b.engine().CloseUnused(t.Context()), state)
			b.sh("! dmsetup info " + name)
		}
		begin()
		require.False(t, b.verb("mount").run(t), state)
		b.requireKept()
		require.Equal(t, name, b.mappings())
		require.False(t, b.verb("unmount").run(t))
		require.Empty(t, b.mappings())
	}
	cleared()
	b.sh("lvchange -an flexlvm-test/data")
	require.NoError(t, b.engine().CloseUnused(t.Context()))
	b.sh("! dmsetup info " + name)
}
