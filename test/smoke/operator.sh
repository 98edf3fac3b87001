#!/bin/sh
# The operator's verbs: vg create, volumes, doctor, install.
set -u
# shellcheck source=test/smoke/lib.sh
. "$(dirname "$0")/lib.sh"

find_device

# refused WHAT TEXT passes if `vg create` refuses the device with TEXT in its message.
refused() {
	if out=$("$driver" vg create --name "$group" "$device" 2>&1); then
		flunk "vg create refuses $1" "$out"
		return
	fi
	case $out in
	*"$2"*) pass "vg create refuses $1" ;;
	*) flunk "vg create refuses $1" "wanted: $2
got: $out" ;;
	esac
}

# The tests write only to a blank device.
out=$("$driver" vg create --dry-run --name "$group" "$device" 2>&1) || bail_out "$out"
touched=yes
equal "vg create --dry-run says what it would run" "$out" "would run: vgcreate --metadatasize 16777216b --physicalextentsize 4194304b -- $group $device"
refute "and does not run it" vgs "$group"
check "the device is still blank" "$driver" vg create --dry-run --name "$group" "$device"

mkfs.xfs -q "$device"
refused "a device with a file system" "signature"
mkdir "$work/mnt"
mount -t xfs "$device" "$work/mnt"
refused "a device that is mounted" "is mounted on $work/mnt"
umount "$work/mnt"
wipefs --all --quiet "$device" 2>/dev/null
printf 'label: gpt\n' | sfdisk --quiet "$device" >/dev/null 2>&1
refused "a device with an empty partition table" "signature"
wipefs --all --quiet "$device" 2>/dev/null
mkswap "$device" >/dev/null 2>&1
refused "a device with swap space on it" "signature"
wipefs --all --quiet "$device" 2>/dev/null
exec 9<"$device"
check "a device that is merely open is not refused" "$driver" vg create --dry-run --name "$group" "$device"
exec 9<&-
refute "vg create refuses a device named twice" "$driver" vg create --name "$group" "$device" "$device"
refute "vg create refuses a file" "$driver" vg create --name "$group" "$0"
refute "vg create refuses a small metadata area" "$driver" vg create --name "$group" --metadata-size 1MiB "$device"

make_group
area=$(vgs --noheadings --nosuffix --units b -o vg_mda_size "$group" | tr -d ' ')
check "the metadata area has 16 MiB at least" [ "$area" -ge $((16 * mib)) ]
refused "a device that belongs to a group" "exists"
out=$("$driver" vg create --name "$group-2" "$device" 2>&1)
case $out in *"not blank"*) pass "vg create refuses a device of LVM's" ;; *) flunk "vg create refuses a device of LVM's" "$out" ;; esac

size=$((64 * mib))
dir=$(target one)
succeeds "mount" mount "$dir" "$(options pvc-1 $size)"
# The driver writes the tags a moment after its reply.
waited=0
while "$driver" volumes list --group "$group" | grep -q creating && [ $waited -lt 60 ]; do
	sleep 1
	waited=$((waited + 1))
done
line=$("$driver" volumes list --group "$group" | awk 'NR == 2 { print $1, $2, $3, $4, $6, $7, $9 }')
equal "volumes list shows the volume" "$line" "$group pvc-1 ready 64MiB $namespace claim mounted"
check "volumes show tells its exact size" sh -c "'$driver' volumes show pvc-1 --group '$group' | grep -q '^Size: *$size (64 MiB)'"
check "volumes list -o json" sh -c "'$driver' volumes list --group '$group' -o json | grep -q '\"size\": $size'"
refute "volumes show of a name that is not there" "$driver" volumes show pvc-2 --group "$group"
succeeds "unmount" unmount "$dir"
equal "volumes list shows it unmounted" "$("$driver" volumes list --group "$group" | awk 'NR == 2 { print $9 }')" no

# A claim's deletion and its reversal, by hand.
state() { "$driver" volumes list --group "$group" | awk 'NR == 2 { print $3 }'; }
undelete() { "$driver" volumes undelete "$@" --group "$group" --node smoke --claim data; }

succeeds "mount it to leave something in it" mount "$dir" "$(options pvc-1 $size)"
echo kept >"$dir/file"
refute "volumes forget of a volume in use" "$driver" volumes forget pvc-1 --group "$group"
succeeds "unmount it" unmount "$dir"
refute "volumes undelete of a volume that is ready" undelete pvc-1
check "volumes forget" "$driver" volumes forget pvc-1 --group "$group"
equal "gives it up" "$(state)" unreferenced
fails "nobody mounts it then" "volumes undelete pvc-1" mount "$dir" "$(options pvc-1 $size)"
check "volumes retain" "$driver" volumes retain pvc-1 --group "$group"
equal "keeps it" "$(state)" retained
check "volumes undelete --dry-run" undelete pvc-1 --dry-run
equal "changes nothing" "$(state)" retained
undelete pvc-1 >"$work/manifests" 2>"$work/notes"
equal "volumes undelete" "$?" 0
equal "brings it back" "$(state)" ready
check "and says so beside its manifests" grep -q "is ready again (it was retained)" "$work/notes"
equal "which begin at once" "$(head -n 3 "$work/manifests" | tr '\n' ' ')" "--- apiVersion: v1 kind: PersistentVolume "
check "and name the size to the byte" grep -q "size: \"$size\"" "$work/manifests"
succeeds "it can be mounted again" mount "$dir" "$(options pvc-1 $size)"
equal "with what was in it" "$(cat "$dir/file")" kept
succeeds "unmount it again" unmount "$dir"
refute "volumes undelete of a name that is not there" undelete pvc-2

plugins=$work/plugins
check "install" "$driver" install --plugin-dir "$plugins"
check "the installed driver is this one" cmp "$driver" "$plugins/flexlvm.io~flexlvm/flexlvm"
equal "nothing else is in its directory" "$(ls -A "$plugins/flexlvm.io~flexlvm")" flexlvm
"$driver" doctor --group "$group" --plugin-dir "$plugins" >"$work/doctor" 2>&1
sed 's/^/# /' "$work/doctor"
check "doctor looks at something" grep -q '^OK ' "$work/doctor"
# A kubelet on this machine uses another plugin directory, which is a finding of its own.
refute "doctor finds nothing that keeps this node from working" sh -c "grep '^FAIL' '$work/doctor' | grep -v 'plugin directory'"
refute "doctor finds fault with a group that is not there" "$driver" doctor --group "$group-2" --plugin-dir "$plugins"
check "uninstall" "$driver" uninstall --plugin-dir "$plugins" --force
refute "takes the driver away" [ -e "$plugins/flexlvm.io~flexlvm" ]
