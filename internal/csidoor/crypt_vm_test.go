//go:build vm

package csidoor_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/mount"
	"github.com/flexlvm/flexlvm/internal/node"
	"github.com/flexlvm/flexlvm/internal/volume"
)

const (
	rightKey = "the-right-key-of-the-volume-data-0123456789"
	falseKey = "another-key-that-opens-nothing--0123456789"
	pattern  = "a-pattern-that-nobody-should-find-below"
	rawLV    = "/dev/mapper/flexlvm--test-data"
)

func newEncryptedBed(t *testing.T) bed {
	t.Helper()
	b := newBed(t)
	b.Spec.Encrypted, b.Key = true, rightKey
	return b
}

// thin makes the volume a thin one. The pool exists until the test ends.
func (b *bed) thin() {
	b.t.Helper()
	b.sh("lvcreate --yes -q --thin --size 2G --zero y --errorwhenfull y --addtag flexlvm --addtag flexlvm.kind=pool --thinpool thinpool flexlvm-test")
	b.t.Cleanup(func() { b.sh("lvremove --yes flexlvm-test/thinpool") })
	b.Spec.Layout, b.Spec.ThinPool = volume.Thin, "thinpool"
	b.t.Cleanup(b.clear) // before the pool
}

// fails makes a call that must return an error, and returns its output.
func (c call) fails(t *testing.T) string {
	t.Helper()
	out, err := c.output(t)
	require.Error(t, err)
	return out
}

func (b bed) with(verb, key string) call {
	c := b.verb(verb)
	c.Key = key
	return c
}

// engine returns an engine in this process that uses the node's state and locks.
func (b bed) engine() *node.Engine {
	b.t.Helper()
	log := logrus.New()
	e, err := node.New(node.Config{StateDir: b.Dir + "/state", LockDir: b.Dir + "/lock", Log: log}, programs(log))
	require.NoError(b.t, err)
	return e
}

func (b bed) mappings() string {
	b.t.Helper()
	return b.sh("dmsetup ls --target crypt | grep -o 'flexlvm-crypt-[A-Za-z0-9]*' || true")
}

// below reports whether a text can be read from the volume's device, bypassing the page cache.
func (b bed) below(text string) bool {
	b.t.Helper()
	return b.sh("sync; echo 3 > /proc/sys/vm/drop_caches; grep -c -a -F -e '"+text+"' "+rawLV+" || true") != "0"
}

// written returns a value that changes with every write to the volume's device: the number of sectors
// written or discarded, as the kernel counts them while the device is active (internal/node tests that
// count), and a hash of the header and the MiB behind it.
func (b bed) written() string {
	b.t.Helper()
	d, err := lvm.FindDevice("flexlvm-test", "data")
	require.NoError(b.t, err)
	return b.sh(fmt.Sprintf("sync; head -c 17M %s | sha256sum; awk '{print $7, $14}' /sys/dev/block/%d:%d/stat", rawLV, unix.Major(d.Number), unix.Minor(d.Number)))
}

func (b bed) write() {
	b.t.Helper()
	require.NoError(b.t, os.WriteFile(b.Target+"/f", []byte(strings.Repeat(pattern+"\n", 1000)), 0o600))
	b.sh("sync " + b.Target + "/f")
}

func (b bed) requireKept() {
	b.t.Helper()
	text, err := os.ReadFile(b.Target + "/f")
	require.NoError(b.t, err)
	require.Equal(b.t, strings.Repeat(pattern+"\n", 1000), string(text))
}

// watchProcesses searches the arguments and the environment of every process for a text until stopped,
// and returns what it found.
func watchProcesses(text string) (stop func() []string) {
	end, found := make(chan struct{}), make(chan []string)
	go func() {
		var seen []string
		self := fmt.Sprintf("/proc/%d/", os.Getpid())
		for {
			select {
			case <-end:
				found <- seen
				return
			case <-time.After(2 * time.Millisecond):
			}
			for _, name := range []string{"cmdline", "environ"} {
				files, _ := filepath.Glob("/proc/[0-9]*/" + name)
				for _, file := range files {
					b, err := os.ReadFile(file)
					// The process that stands for the driver gets its call in a variable.
					if err == nil && strings.Contains(string(b), text) && !strings.HasPrefix(file, self) && !strings.Contains(string(b), callVariable+"=") {
						seen = append(seen, file+": "+string(b))
					}
				}
			}
		}
	}()
	return func() []string { close(end); return <-found }
}

// The life of an encrypted volume: none of its data can be read from the device below, its key is in no
// process, file or log, and it has the size that was asked for.
func TestEncryptedLife(t *testing.T) {
	b := newEncryptedBed(t)
	stop := watchProcesses(rightKey)
	c := b.verb("mount")
	c.AsShipped = true
	out, err := c.output(t)
	require.NoError(t, err, out)
	require.Equal(t, b.Spec.Size, b.size())
	b.write()
	require.Equal(t, "flexlvm-crypt-"+strings.ReplaceAll(b.sh("lvs --noheadings -o lv_uuid flexlvm-test/data"), "-", ""), b.mappings())
	require.Contains(t, b.sh("lvs --noheadings -o lv_tags flexlvm-test/data"), "flexlvm.luks="+b.sh("cryptsetup luksUUID "+rawLV))
	dump := b.sh("cryptsetup luksDump " + rawLV)
	for _, want := range []string{`cipher: aes-xts-plain64`, `offset: 16777216 \[bytes\]`, `PBKDF: +argon2id`, `Memory: +65536`, `Key: +512 bits`} {
		require.Regexp(t, want, dump)
	}
	require.Equal(t, "1", b.sh("grep -l -a -F -e "+pattern+" /dev/mapper/"+b.mappings()+" | wc -l"), "it is there to be found above")
	require.False(t, b.below(pattern))
	b.sh("dd if=/dev/zero of=" + b.Target + "/fill bs=1M count=15 conv=fsync 2>/dev/null; rm " + b.Target + "/fill")

	seen, err := b.engine().List(t.Context())
	require.NoError(t, err)
	require.Len(t, seen, 1)
	require.True(t, seen[0].Encrypted)
	require.Equal(t, []string{b.Target}, seen[0].Mounts)
	_, err = b.engine().Trim(t.Context(), node.Ref{Group: "flexlvm-test", Name: "data", Cluster: b.Spec.Cluster}, 0)
	require.ErrorIs(t, err, mount.ErrCannotTrim)

	// A second pod on the node needs the key, too.
	second := b.verb("mount")
	second.Target += "-2"
	second.Key = falseKey
	require.Contains(t, second.fails(t), "Unauthenticated")
	second.Key = rightKey
	require.False(t, second.run(t))
	require.False(t, b.verb("unmount").run(t))
	require.NotEmpty(t, b.mappings(), "the other pod has it")
	second.Verb = "unmount"
	require.False(t, second.run(t))
	require.Empty(t, b.mappings(), "it closes with the last mount")

	b.sh("lvchange -an flexlvm-test/data") // as after a reboot
	require.False(t, b.verb("mount").run(t))
	b.requireKept()
	require.Empty(t, stop(), "arguments and environments with the key")
	require.Empty(t, b.sh("grep -r -l -F -e "+rightKey+" "+b.Dir+" || true"), "files with the key")
	require.NotContains(t, out, rightKey, "the log, at its most talkative")
	require.Contains(t, out, "luksFormat", "which it is")
	require.False(t, b.below(rightKey))
}

// A wrong or missing key, the wrong driver and another namespace are refused, and nothing is formatted
// or changed.
func TestEncryptedRefusals(t *testing.T) {
	b := newEncryptedBed(t)
	require.Contains(t, b.with("mount", "").fails(t), "the volume is encrypted")
	require.Empty(t, b.lvs(), "refused before anything was made")
	require.False(t, b.verb("mount").run(t))
	b.write()
	require.False(t, b.verb("unmount").run(t))
	before := b.written()

	wrong := b.with("mount", falseKey).fails(t)
	require.Contains(t, wrong, "Unauthenticated")
	require.Contains(t, wrong, "the key of volume flexlvm-test/data is wrong, and nothing was changed: the Secret")
	require.NotContains(t, wrong, falseKey)
	require.NoError(t, os.RemoveAll(b.Dir+"/state")) // without a record, LVM identifies the volume
	require.Contains(t, b.with("mount", falseKey).fails(t), "Unauthenticated")
	plain := b.verb("mount")
	plain.Spec.Encrypted, plain.Key = false, ""
	require.Contains(t, plain.fails(t), "is encrypted, and its PersistentVolume does not say so")
	flex := b.verb("mount")
	flex.Flex = true
	require.Contains(t, flex.fails(t), "the call brings no key")
	thief := b.verb("mount")
	thief.Spec.Namespace = "thief"
	require.Contains(t, thief.fails(t), `belongs to namespace "default", not to "thief"`)
	require.Equal(t, before, b.written())
	require.Empty(t, b.mappings())

	// A lost or foreign header means that the volume is damaged, whatever the node's record says.
	b.sh("dd if=" + rawLV + " of=" + b.Dir + "/header bs=1M count=16 2>/dev/null")
	for _, spoil := range []string{
		"dd if=/dev/zero of=" + rawLV + " bs=1M count=1 conv=notrunc,fsync 2>/dev/null",
		"cryptsetup luksUUID -q --uuid=5f0b2c1e-6a39-4c5f-9d3f-2f7b3f1f8a01 " + rawLV,
	} {
		b.sh("dd if=" + b.Dir + "/header of=" + rawLV + " bs=1M conv=notrunc,fsync 2>/dev/null")
		b.sh(spoil)
		spoilt := b.written()
		for range 2 {
			require.Contains(t, b.verb("mount").fails(t), "is not formatted again, and without its header nobody can read it")
			require.NoError(t, os.RemoveAll(b.Dir+"/state"))
		}
		require.Equal(t, spoilt, b.written())
	}
	b.sh("dd if=" + b.Dir + "/header of=" + rawLV + " bs=1M conv=notrunc,fsync 2>/dev/null")
	b.sh("dd if=/dev/zero of=" + rawLV + " bs=4096 count=1 conv=notrunc,fsync 2>/dev/null") // cryptsetup uses the header's second copy
	require.False(t, b.verb("mount").run(t))
	b.requireKept()
	b.sh("umount " + b.Target + "; mkfs.xfs -q -f -m uuid=$(cat /proc/sys/kernel/random/uuid) /dev/mapper/" + b.mappings())
	require.Contains(t, b.verb("mount").fails(t), "should hold the XFS file system")
}

// A volume that is not encrypted is not used for a PersistentVolume that asks for encryption.
func TestEncryptedClassOfAPlainVolume(t *testing.T) {
	b := newBed(t)
	require.False(t, b.verb("mount").run(t))
	require.False(t, b.verb("unmount").run(t))
	b.Spec.Encrypted, b.Key = true, rightKey
	require.Contains(t, b.verb("mount").fails(t), "is not encrypted, so this is not the volume")
}

// The skipped steps are covered by TestPublishKilledAfterEveryStep, and those of encryption by
// TestEncryptedExt4PublishKilledAfterSomeSteps (luksOpen) and
// TestEncryptedFirstMountRepeatedWithAnotherKey (set LUKS UUID).
func TestEncryptedPublishKilledAfterSomeSteps(t *testing.T) {
	b := newEncryptedBed(t)
	deaths := afterSomeSteps(t, 2, b.verb("mount"), b.clear, func(die int) {
		require.Equal(t, "data", b.lvs(), "one volume after death %d", die)
		require.Equal(t, b.Spec.Size, b.size())
		require.Contains(t, b.sh("lvs --noheadings -o lv_tags flexlvm-test/data"), "flexlvm.state=ready")
		b.sh("dd if=/dev/zero of=" + b.Target + "/fill bs=1M count=15 conv=fsync 2>/dev/null")
	})
	require.Equal(t, 13, deaths, "lvcreate, luksFormat, set LUKS UUID, luksOpen, mkfs; attach, set project, grow, set quota; write record, tag ready, record ready; move mount")
}

// If a killed first mount is repeated with another key, the volume is formatted again with that key
// only while its LUKS container was not finished.
func TestEncryptedFirstMountRepeatedWithAnotherKey(t *testing.T) {
	b := newEncryptedBed(t)
	for die := 1; die <= 5; die++ {
		b.clear()
		c := b.verb("mount")
		c.Die = die
		require.True(t, c.run(t))
		other := b.with("mount", falseKey)
		if die < 3 {
			require.False(t, other.run(t), "after death %d", die)
			continue
		}
		require.Contains(t, other.fails(t), "Unauthenticated", "after death %d", die)
		require.False(t, b.verb("mount").run(t))
	}
}

func TestEncryptedUnpublishKilledAfterEveryStep(t *testing.T) {
	b := newEncryptedBed(t)
	untilAlive(t, b.verb("unmount"), func() {
		b.clear()
		require.False(t, b.verb("mount").run(t))
		b.write()
	}, func(die int) {
		require.NotContains(t, b.sh("cat /proc/self/mountinfo"), b.Target, "after death %d", die)
		require.NoError(t, b.engine().CloseUnused(t.Context()))
		require.Empty(t, b.mappings(), "after death %d", die)
		require.False(t, b.verb("mount").run(t))
		b.requireKept()
		require.NoError(t, b.engine().CloseUnused(t.Context()))
		require.NotEmpty(t, b.mappings(), "it is in use")
	})
}

func TestEncryptedExpandKilledAfterEveryStep(t *testing.T) {
	b := newEncryptedBed(t)
	c := b.verb("expand")
	c.Size = grown
	untilAlive(t, c, func() {
		b.clear()
		require.False(t, b.verb("mount").run(t))
		b.write()
	}, func(die int) {
		b.requireKept()
		require.Equal(t, grown, b.size(), "after death %d", die)
		b.sh("fallocate -l 400M " + b.Target + "/large")
	})

	// Without its key, nothing grows.
	c.Size = 2 * grown
	before := b.sh("lvs --noheadings -o lv_size,lv_tags --units b flexlvm-test/data")
	c.Key = falseKey
	require.Contains(t, c.fails(t), "Unauthenticated")
	c.Key = ""
	require.Contains(t, c.fails(t), "nodeExpandSecretRef for growth")
	require.Equal(t, before, b.sh("lvs --noheadings -o lv_size,lv_tags --units b flexlvm-test/data"))
}

// The next mount finishes a growth that was cut short.
func TestEncryptedMountAfterGrowthKilled(t *testing.T) {
	b := newEncryptedBed(t)
	require.False(t, b.verb("mount").run(t))
	c := b.verb("expand")
	c.Size, c.Die = grown, 1 // lvextend
	require.True(t, c.run(t))
	require.False(t, b.verb("unmount").run(t))
	require.False(t, b.verb("mount").run(t))
	require.Equal(t, b.Spec.Size, b.size())
	c.Die = 0
	require.False(t, c.run(t))
	require.Equal(t, grown, b.size())
}

// A mapping that a killed call left open delays a removal only until it is closed.
func TestEncryptedRemovalAfterUnmountKilled(t *testing.T) {
	b := newEncryptedBed(t)
	require.False(t, b.verb("mount").run(t))
	c := b.verb("unmount")
	c.Die = 1
	require.True(t, c.run(t))
	ref := node.Ref{Group: "flexlvm-test", Name: "data", Cluster: b.Spec.Cluster}
	e := b.engine()
	require.NoError(t, e.Release(t.Context(), ref, volume.Unreferenced, volume.Disposal{Wipe: volume.WipeZero}))
	require.ErrorIs(t, e.Remove(t.Context(), ref), node.ErrInUse)
	require.NoError(t, e.CloseUnused(t.Context()))
	require.NoError(t, e.Remove(t.Context(), ref))
	require.Empty(t, b.lvs())
}

// A clone is opened with its source's key, and has its own LUKS container and file system.
func TestEncryptedCopyKilledAfterSomeSteps(t *testing.T) {
	b := newEncryptedBed(t)
	b.thin()
	require.False(t, b.verb("mount").run(t))
	b.write()

	c := b.verb("mount")
	c.Spec.Name, c.Spec.CloneOf = "copy", b.Spec.Name
	c.Target += "-copy"
	forget := func() {
		_ = exec.Command("umount", c.Target).Run()
		require.NoError(t, b.engine().CloseUnused(t.Context()))
		if strings.Contains(b.lvs(), "copy") {
			b.sh("lvremove --yes flexlvm-test/copy")
		}
		require.NoError(t, os.RemoveAll(b.Dir+"/state/volumes/flexlvm-test/copy"))
	}
	t.Cleanup(forget)
	afterSomeSteps(t, 3, c, forget, func(die int) {
		text, err := os.ReadFile(c.Target + "/f")
		require.NoError(t, err, "after death %d", die)
		require.Equal(t, strings.Repeat(pattern+"\n", 1000), string(text))
	})
	require.Len(t, strings.Fields(b.mappings()), 2, "side by side")
	require.NotEqual(t, b.sh("cryptsetup luksUUID "+rawLV), b.sh("cryptsetup luksUUID /dev/mapper/flexlvm--test-copy"))
	require.NoError(t, os.WriteFile(c.Target+"/f", []byte("of the copy"), 0o600))
	b.requireKept()

	forget()
	c.Key = falseKey
	require.Contains(t, c.fails(t), "Unauthenticated")
	require.NotContains(t, b.lvs(), "copy", "refused before anything was made")
	c.Spec.Encrypted, c.Key = false, ""
	require.Contains(t, c.fails(t), "must both be encrypted, or neither")
}

// LVM finds the group's devices by their UUIDs and does not use a volume's mapping as one.
func TestEncryptedVolumeIsNoDeviceOfLVM(t *testing.T) {
	b := newEncryptedBed(t)
	require.False(t, b.verb("mount").run(t))
	_, err := lvm.FindDevice("flexlvm-test", "data")
	require.NoError(t, err)
	require.NotContains(t, b.sh("pvs --noheadings -o pv_name"), "crypt")
}
