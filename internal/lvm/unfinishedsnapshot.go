package lvm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"k8s.io/utils/exec"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// runWithSnapshotRepair runs a command on a volume that is being removed, and once more if the first run
// failed because of what repairUnfinishedSnapshot has repaired.
func (c *Client) runWithSnapshotRepair(ctx context.Context, lv LogicalVolume, name string, args ...string) error {
	_, err := c.lvm(ctx, name, args...)
	if err == nil || lv.Shape.Layout != volume.Thin {
		return err
	}
	dropped, derr := c.repairUnfinishedSnapshot(ctx, lv)
	if dropped {
		_, err = c.lvm(ctx, name, args...)
	}
	return errors.Join(err, derr)
}

// repairUnfinishedSnapshot repairs a thin snapshot that is being removed, so that LVM can handle it, and
// reports whether it had to.
//
// LVM records a snapshot in its metadata, has the kernel's thin pool create it, has the pool count
// that as a transaction, and removes the record. If the power fails between the second and the
// third step, LVM (2.03.16) has the pool create the snapshot again with its next command, the pool
// already has one, and from then on nothing can be created in the pool ("Manual intervention may be
// required"). Nobody has written to the pool's snapshot, because LVM exposes it only after the
// third step; so it is deleted, and LVM creates it once more.
func (c *Client) repairUnfinishedSnapshot(ctx context.Context, lv LogicalVolume) (bool, error) {
	text, err := c.metadata(ctx, lv.Group)
	if err != nil {
		return false, err
	}
	half, ok := parseUndelivered(text, lv.Shape.ThinPool, lv.Name)
	if !ok {
		return false, nil
	}
	device := volume.DeviceName(lv.Group, lv.Shape.ThinPool) + "-tpool"
	counted, err := c.transaction(ctx, device)
	if err != nil || counted != half.transaction-1 {
		return false, err
	}
	if _, err := FindDevice(lv.Group, lv.Name); err == nil {
		if _, err := c.lvm(ctx, "lvchange", "--activate", "n", "--", lv.path()); err != nil {
			return false, fmt.Errorf("deactivate logical volume %s: %w", lv.path(), err)
		}
	}
	if _, err := c.lvm(ctx, "dmsetup", "message", device, "0", "delete", strconv.Itoa(half.device)); err != nil {
		return false, fmt.Errorf("remove the unfinished snapshot %s from its thin pool: %w", lv.path(), err)
	}
	return true, nil
}

// metadata returns LVM's metadata of a group as text.
func (c *Client) metadata(ctx context.Context, g volume.Group) (string, error) {
	dir, err := os.MkdirTemp(string(c.locks), "metadata-")
	if err != nil {
		return "", fmt.Errorf("read the metadata of volume group %s: %w", g, err)
	}
	file := filepath.Join(dir, "text")
	_, err = c.lvm(ctx, "vgcfgbackup", "--file", file, "--", string(g))
	var text []byte
	if err == nil {
		text, err = os.ReadFile(file)
	}
	if err := errors.Join(err, os.RemoveAll(dir)); err != nil {
		return "", fmt.Errorf("read the metadata of volume group %s: %w", g, err)
	}
	return string(text), nil
}

// transaction returns how many transactions the kernel's thin pool has counted.
func (c *Client) transaction(ctx context.Context, device string) (int, error) {
	out, err := c.lvm(ctx, "dmsetup", "status", device)
	var exit exec.ExitError
	if errors.As(err, &exit) {
		return 0, fmt.Errorf("the thin pool is not active: %w", err)
	}
	if err != nil {
		return 0, err
	}
	return parseTransaction(string(out))
}

// parseTransaction parses "0 2097152 thin-pool 1 1650/16384 …".
func parseTransaction(status string) (int, error) {
	fields := strings.Fields(status)
	if len(fields) < 4 || fields[2] != kindPool {
		return 0, fmt.Errorf("the status of the thin pool makes no sense: %q", status)
	}
	n, err := strconv.Atoi(fields[3])
	if err != nil {
		return 0, fmt.Errorf("the status of the thin pool makes no sense: %q", status)
	}
	return n, nil
}

// undelivered is a volume that, according to LVM's metadata, its thin pool has yet to create.
type undelivered struct {
	device      int // its number in the pool
	transaction int // the pool's, once the volume is created
}

// parseUndelivered searches LVM's text for a record that the volume is yet to be created. The text
// is what LVM itself reads (lvmlocal.conf(5), vgcfgbackup(8)), with a tab for each section that a
// line is in.
func parseUndelivered(text string, pool, name volume.Name) (u undelivered, ok bool) {
	p, v := section(text, pool), section(text, name)
	if !strings.Contains(p, "\tcreate = \""+string(name)+"\"\n") {
		return u, false
	}
	var one, two bool
	u.transaction, one = number(p, "transaction_id")
	u.device, two = number(v, "device_id")
	return u, one && two
}

// section returns the section of a logical volume in LVM's text.
func section(text string, n volume.Name) string {
	_, after, _ := strings.Cut(text, "\n\t\t"+string(n)+" {\n")
	inside, _, _ := strings.Cut(after, "\n\t\t}\n")
	return inside + "\n"
}

// number parses a field that occurs exactly once.
func number(section, field string) (int, bool) {
	if strings.Count(section, "\t"+field+" = ") != 1 {
		return 0, false
	}
	_, after, _ := strings.Cut(section, "\t"+field+" = ")
	value, _, _ := strings.Cut(after, "\n")
	n, err := strconv.Atoi(value)
	return n, err == nil
}
