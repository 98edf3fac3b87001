package dm

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	testingexec "k8s.io/utils/exec/testing"

	"github.com/flexlvm/flexlvm/internal/command/commandtest"
	"github.com/flexlvm/flexlvm/internal/volume"
)

func TestLinear(t *testing.T) {
	var lines []string
	host := commandtest.Func(func(argv ...string) (string, error) {
		lines = append(lines, strings.Join(argv, " "))
		return "", nil
	})
	name, device := BlockName(lv), unix.Mkdev(254, 3)
	require.NoError(t, Make(t.Context(), host, name, device, volume.MiB+1))
	require.NoError(t, Resize(t.Context(), host, name, device, 2*volume.MiB))
	require.NoError(t, Remove(t.Context(), host, name))
	require.Equal(t, []string{
		"dmsetup create flexlvm-block-Zk2Q1s8hVbPq1C2dLc9XwqTfKoa1B2c3 --uuid FLEXLVM-flexlvm-block-Zk2Q1s8hVbPq1C2dLc9XwqTfKoa1B2c3 --table 0 2056 linear 254:3 0 --verifyudev",
		"dmsetup load " + name + " --table 0 4096 linear 254:3 0 --verifyudev",
		"dmsetup resume " + name + " --verifyudev",
		"dmsetup remove " + name + " --verifyudev",
	}, lines)
}

func TestRemoveInUse(t *testing.T) {
	failing := func(printed string) commandtest.Func {
		return func(...string) (string, error) {
			return "", fmt.Errorf("%w: %s", &testingexec.FakeExitError{Status: 1}, printed)
		}
	}
	require.ErrorIs(t, Remove(t.Context(), failing("remove ioctl on x failed: Device or resource busy"), "x"), ErrBusy)
	require.NotErrorIs(t, Remove(t.Context(), failing("no such device"), "x"), ErrBusy)
}

// A mapping that a killed dmsetup has left is replaced only if it has no table and is not open.
func TestMakeOverEmpty(t *testing.T) {
	busy := fmt.Errorf("%w: Device or resource busy", &testingexec.FakeExitError{Status: 1})
	name := BlockName(lv)
	for info, anew := range map[string]bool{
		"FLEXLVM-" + name + ",None,0\n":     true,
		"FLEXLVM-" + name + ",None,1\n":     false,
		"FLEXLVM-" + name + ",Live,0\n":     false,
		"FLEXLVM-" + name + ",Inactive,0\n": false,
		"OTHER-" + name + ",None,0\n":       false,
		"":                                  false,
	} {
		there, creates := true, 0
		err := Make(t.Context(), commandtest.Func(func(argv ...string) (string, error) {
			switch argv[1] {
			case "info":
				return info, nil
			case "remove":
				require.True(t, anew, info)
				there = false
				return "", nil
			}
			if creates++; there {
				return "", busy
			}
			return "", nil
		}), name, unix.Mkdev(254, 3), volume.MiB)
		if anew {
			require.NoError(t, err)
			require.Equal(t, 2, creates)
			continue
		}
		require.ErrorIs(t, err, ErrBusy, info)
		require.Equal(t, 1, creates)
	}
}

// A mapping that a killed cryptsetup has left is removed only if it has no table and is not open.
func TestRemoveEmptyOfCryptsetup(t *testing.T) {
	name, other := CryptName(lv), CryptName(strings.ToUpper(lv))
	uuid := cryptUUID + strings.ReplaceAll(id, "-", "")
	for info, want := range map[string]bool{
		uuid + "-" + name + ",None,0\n":          true,
		uuid + "-" + name + ",None,1\n":          false,
		uuid + "-" + name + ",Live,0\n":          false,
		uuid + "-" + name + ",Live,Inactive,0\n": false,
		uuid + "-" + other + ",None,0\n":         false,
		"CRYPT-PLAIN-" + name + ",None,0\n":      false,
		"FLEXLVM-" + name + ",None,0\n":          false,
	} {
		var verbs []string
		removed, err := RemoveEmpty(t.Context(), commandtest.Func(func(argv ...string) (string, error) {
			verbs = append(verbs, argv[1])
			return info, nil
		}), name)
		require.NoError(t, err)
		require.Equal(t, want, removed, info)
		require.Equal(t, want, len(verbs) == 2, info)
	}
}
