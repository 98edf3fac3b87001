#!/bin/sh
# Faults that must never happen: a volume mounted for the wrong claim, or formatted twice.
set -u
# shellcheck source=test/smoke/lib.sh
. "$(dirname "$0")/lib.sh"
make_group

size=$((64 * mib))
dir=$(target one)
uuid=$(vgs --noheadings -o vg_uuid "$group" | tr -d ' ')

succeeds "mount, with the group's UUID pinned" mount "$dir" "$(options mine $size "\"volumeGroupUUID\":\"$uuid\"")"
echo precious >"$dir/file"
other=$(target other)
fails "a pod of another namespace" "namespace" mount "$other" "$(namespace=other && options mine $size)"
succeeds "unmount" unmount "$dir"
fails "a pod of another namespace, when it is not mounted" "namespace" mount "$other" "$(namespace=other && options mine $size)"
fails "another group's UUID" "volumeGroupUUID" mount "$dir" "$(options mine $size '"volumeGroupUUID":"AAAAAA-bbbb-cccc-dddd-eeee-ffff-GGGGGG"')"
fails "another group's UUID, for a volume that does not exist" "volumeGroupUUID" mount "$dir" "$(options never $size '"volumeGroupUUID":"AAAAAA-bbbb-cccc-dddd-eeee-ffff-GGGGGG"')"
fails "another cluster" "clusterUID" mount "$dir" "$(options mine $size '"clusterUID":"11111111-2222-3333-4444-555555555555"')"
fails "another kind" "kind" mount "$dir" "$(options mine $size '"kind":"dataset"')"
fails "a size larger than the volume's" "size" mount "$dir" "$(options mine $((2 * size)))"
fails "a volume that cannot fit" "not enough free space" mount "$dir" "$(options huge $((1024 * 1024 * mib)))"
refute "leaves nothing behind" lvs "$group/huge"

mount -t tmpfs none "$dir"
fails "a target where something else is mounted" "something else is mounted" mount "$dir" "$(options mine $size)"
fails "unmount of what is not ours" "no flexlvm volume" unmount "$dir"
check "leaves it mounted" is_mounted "$dir"
umount "$dir"

lvcreate --yes --size 300M --name foreign "$group" >/dev/null 2>&1
fails "a logical volume without our tag" "not flexlvm's" mount "$dir" "$(options foreign $size)"
drop foreign

# The volume holds data, and then its superblock is lost. It must not be formatted.
lvchange --activate y "$group/mine"
device_of_mine=/dev/$group/mine
[ -e "$device_of_mine" ] || device_of_mine=/dev/mapper/$(printf %s "$group" | sed 's/-/--/g')-mine
dd if="$device_of_mine" of="$work/superblock" bs=4096 count=1 2>/dev/null
dd if=/dev/zero of="$device_of_mine" bs=4096 count=1 conv=fsync 2>/dev/null
before=$(cksum <"$device_of_mine")
fails "a volume whose superblock is destroyed" "not formatted again" mount "$dir" "$(options mine $size)"
equal "was not written to" "$(cksum <"$device_of_mine")" "$before"
mkfs.ext4 -q -F "$device_of_mine" 2>/dev/null || mkfs.xfs -q -f "$device_of_mine"
before=$(cksum <"$device_of_mine")
fails "a volume that holds another file system" "not formatted again" mount "$dir" "$(options mine $size)"
equal "was not written to either" "$(cksum <"$device_of_mine")" "$before"
drop mine

# The record shows that this node has mounted the volume, which is gone.
succeeds "mount" mount "$dir" "$(options gone $size)"
succeeds "unmount" unmount "$dir"
lvremove --yes "$group/gone" >/dev/null 2>&1
fails "a volume that was lost" "lost" mount "$dir" "$(options gone $size)"
refute "is not replaced by an empty one" lvs "$group/gone"
