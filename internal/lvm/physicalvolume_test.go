package lvm

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	testingexec "k8s.io/utils/exec/testing"

	"github.com/flexlvm/flexlvm/internal/command/commandtest"
	"github.com/flexlvm/flexlvm/internal/disk"
	"github.com/flexlvm/flexlvm/internal/lock"
)

// pvsReport is output of LVM 2.03.16 for a group of two devices, one of which is missing, and a device in no group.
const pvsReport = `{"report": [{"pv": [
 {"pv_name":"/dev/vdb", "pv_uuid":"aaaaaa-1", "pv_missing":"", "vg_name":"fast", "vg_uuid":"gggggg-1", "vg_tags":"flexlvm.declared=fast,other"},
 {"pv_name":"[unknown]", "pv_uuid":"aaaaaa-2", "pv_missing":"missing", "vg_name":"fast", "vg_uuid":"gggggg-1", "vg_tags":"flexlvm.declared=fast,other"},
 {"pv_name":"/dev/vdc", "pv_uuid":"aaaaaa-3", "pv_missing":"", "vg_name":"", "vg_uuid":"", "vg_tags":""}
]}]}`

func TestPhysicalVolumes(t *testing.T) {
	var asked string
	c := New(commandtest.Func(func(argv ...string) (string, error) {
		asked = strings.Join(argv, " ")
		return pvsReport, nil
	}), lock.Dir(t.TempDir()))
	all, err := c.PhysicalVolumes(context.Background())
	require.NoError(t, err)
	require.Contains(t, asked, "pvs --reportformat json")
	tags := []string{"flexlvm.declared=fast", "other"}
	require.Equal(t, []PhysicalVolume{
		{Path: "/dev/vdb", UUID: "aaaaaa-1", Group: "fast", GroupUUID: "gggggg-1", GroupTags: tags},
		{UUID: "aaaaaa-2", Group: "fast", GroupUUID: "gggggg-1", GroupTags: tags, Missing: true},
		{Path: "/dev/vdc", UUID: "aaaaaa-3"},
	}, all)

	for _, field := range strings.Split(physicalFields, ",") {
		_, err := parsePhysicalVolumes([]byte(strings.ReplaceAll(pvsReport, `"`+field+`"`, `"x"`)))
		require.ErrorContains(t, err, "a row has no "+field, "half a report is no report")
	}
}

// A group that has the name but another UUID is not extended.
func TestExtendGroupThatIsAnother(t *testing.T) {
	c := New(commandtest.Func(func(argv ...string) (string, error) {
		if argv[0] == "vgs" {
			return golden(t, "groups.json"), nil
		}
		t.Errorf("%s is run", argv[0])
		return "", testingexec.FakeExitError{Status: 5}
	}), lock.Dir(t.TempDir()))
	groups, err := parseGroups([]byte(golden(t, "groups.json")))
	require.NoError(t, err)
	err = c.ExtendGroup(context.Background(), groups[0].Name, "another", []string{"/dev/vdb"})
	require.ErrorContains(t, err, "it is not touched")
}

// A disk is read without LVM's lock, because a hanging disk would block all LVM commands.
func TestCheckBlankForGroupHoldsNoLock(t *testing.T) {
	c, _ := client(t, nil)
	require.NoError(t, c.Alone(t.Context(), func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		require.ErrorContains(t, c.CheckBlankForGroup(ctx, "/dev/null"), "is not a block device")
		return nil
	}))
}

// A process that has the device open may have written to it since the last check, so the call fails.
func TestCreatePhysicalVolumeOfADeviceThatIsOpen(t *testing.T) {
	c, s := client(t, map[string][]answer{"pvcreate": {{}}})
	looks := 0
	c.unused = func(_ context.Context, device string) error {
		if looks++; looks == 1 {
			return fmt.Errorf("device %s: %w: %w", device, ErrNotBlank, ErrOpen)
		}
		return nil
	}
	require.ErrorIs(t, c.CreatePhysicalVolume(t.Context(), "/dev/vdb", "a"), ErrOpen)
	require.Empty(t, s.ran)
	require.NoError(t, c.CreatePhysicalVolume(t.Context(), "/dev/vdb", "a"))
	require.Equal(t, []string{"pvcreate --uuid a --norestorefile --metadatasize 16777216b -- /dev/vdb", "flush /dev/vdb"}, s.ran)
}

// A device that does not answer blocks no caller and does not become a physical volume, even if it answers later.
func TestCreatePhysicalVolumeOfADeviceThatHangs(t *testing.T) {
	c, s := client(t, map[string][]answer{"pvcreate": {{}}})
	c.reads = disk.NewReads(10 * time.Millisecond)
	answers, ended := make(chan struct{}), make(chan struct{})
	c.unused = func(context.Context, string) error {
		<-answers
		defer close(ended)
		return nil
	}
	require.ErrorIs(t, c.CreatePhysicalVolume(t.Context(), "/dev/vdb", "a"), disk.ErrNoAnswer)
	require.ErrorIs(t, c.CheckBlankForGroup(t.Context(), "/dev/vdb"), disk.ErrNoAnswer)
	close(answers)
	<-ended
	require.Empty(t, s.ran)
}

func TestNewPhysicalVolumeUUID(t *testing.T) {
	form := regexp.MustCompile(`^[0-9A-Za-z]{6}(-[0-9A-Za-z]{4}){5}-[0-9A-Za-z]{6}$`)
	seen := map[string]bool{}
	for range 100 {
		uuid, err := NewPhysicalVolumeUUID()
		require.NoError(t, err)
		require.Regexp(t, form, uuid)
		require.False(t, seen[uuid])
		seen[uuid] = true
	}
}
