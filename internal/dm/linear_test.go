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
