package lvm

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A change by LVM is flushed before the call returns. So is a change that a killed call has left.
func TestChangesAreFlushed(t *testing.T) {
	lv := LogicalVolume{Group: "flexlvm", Name: "pvc-1", UUID: pvc1}
	del, add := []string{"flexlvm.state=creating"}, []string{"flexlvm.state=ready"}
	devices := answer{out: golden(t, "devices.json")}
	flushed := []string{"flush /dev/mapper/a", "flush /dev/mapper/b", "flush /dev/mapper/c"}
	for name, c := range map[string]struct {
		answers map[string][]answer
		change  func(c *Client) error
	}{
		"new tags":          {map[string][]answer{"lvchange": {{out: "changed\n"}}}, func(c *Client) error { return c.Retag(t.Context(), lv, del, add) }},
		"tags that it bore": {map[string][]answer{"lvchange": {{}}, "lvs": {{out: only(t, "pvc-1")}}}, func(c *Client) error { return c.Retag(t.Context(), lv, del, add) }},
		"new name":          {map[string][]answer{"lvrename": {{}}}, func(c *Client) error { return c.Rename(t.Context(), lv, "doomed_pvc-1") }},
	} {
		t.Run(name, func(t *testing.T) {
			c.answers["pvs"] = []answer{devices}
			client, s := client(t, c.answers)
			require.NoError(t, c.change(client))
			require.Equal(t, flushed, s.ran[len(s.ran)-3:])
		})
	}
}

// Every copy of the metadata is complete, so flushing one of the disks that have one is enough.
func TestFlushOfFailingDisks(t *testing.T) {
	devices := golden(t, "devices.json")
	bad := errors.New("input/output error")
	flush := func(report string, failing ...string) error {
		c, _ := client(t, map[string][]answer{"pvs": {{out: report}}})
		c.sync = func(device string) error {
			if strings.Contains(strings.Join(failing, " "), device) {
				return bad
			}
			return nil
		}
		return c.Flush(t.Context(), "flexlvm", "pvc-1")
	}
	require.NoError(t, flush(devices, "/dev/mapper/a", "/dev/mapper/b"))
	require.ErrorIs(t, flush(devices, "/dev/mapper/a", "/dev/mapper/b", "/dev/mapper/c"), bad)
	require.NoError(t, flush(strings.ReplaceAll(devices, `"allocatable"`, `""`)), "a disk that no room is taken from")
	elsewhere := strings.Replace(devices, `"pv_mda_used_count":"1"`, `"pv_mda_used_count":"0"`, 1)
	require.ErrorIs(t, flush(elsewhere, "/dev/mapper/b", "/dev/mapper/c"), bad, "the only disk that can be flushed has no metadata")
	require.NoError(t, flush(elsewhere, "/dev/mapper/a", "/dev/mapper/b"))
	missing := strings.ReplaceAll(devices, `"pv_missing":""`, `"pv_missing":"missing"`)
	require.ErrorContains(t, flush(missing), "may not last over a power cut")
}
