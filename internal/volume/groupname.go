package volume

import "fmt"

// RenamedGroup returns what to do about a volume group that was renamed. uuid is the group's, which does not change,
// and former is the name that a PersistentVolume records.
func RenamedGroup(uuid string, now, former Group) string {
	return fmt.Sprintf("volume group %[1]s is on this node under the name %[2]s, with its volumes; give it its name back: `vgrename %[1]s %[3]s` (if another group has that name by now, rename that one first)", uuid, now, former)
}
