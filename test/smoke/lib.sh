# Shared by the smoke tests, which source it. It finds the driver, creates a scratch volume group on
# a blank device, calls the driver as kubelet does, and removes everything that it created, however
# the test ends.
#
# It changes nothing that it did not create: the group has a unique name, the device is passed to
# `flexlvm vg create`, which refuses one with any content, and only that group is ever removed.
# shellcheck shell=sh

driver=/usr/libexec/kubernetes/kubelet-plugins/volume/exec/flexlvm.io~flexlvm/flexlvm
device=
file=
size_of_file=2G

usage() {
	cat <<EOF
usage: $0 [--driver PATH] [--device DEVICE | --file PATH] [--file-size SIZE]

  --driver PATH     the driver to test
                    (default $driver)
  --device DEVICE   a spare block device of at least 2 GiB that holds nothing
  --file PATH       a file to make, and to use as a disk (default: one in /var/tmp)
  --file-size SIZE  its size (default $size_of_file); it is sparse
EOF
}

bail_out() {
	echo "Bail out! $*"
	exit 1
}

while [ $# -gt 0 ]; do
	case $1 in
	--driver | --device | --file | --file-size)
		[ $# -ge 2 ] || bail_out "$1 wants a value"
		case $1 in
		--driver) driver=$2 ;;
		--device) device=$2 ;;
		--file) file=$2 ;;
		--file-size) size_of_file=$2 ;;
		esac
		shift 2
		;;
	--help | -h)
		usage
		exit 0
		;;
	*)
		usage >&2
		exit 2
		;;
	esac
done

[ "$(id -u)" = 0 ] || bail_out "run it as root"
[ -x "$driver" ] || bail_out "$driver is not there; run \`flexlvm install\`, or give --driver"

group=smoke-$$-$(date +%s)
namespace=smoke
rw=rw
work=
made_file=
loop=
touched=
tests=0
failed=0

# --- cleanup ---------------------------------------------------------------

cleanup() {
	code=$?
	trap - EXIT
	trap '' INT TERM HUP
	wait # background calls do not get the interrupt
	exec 9<&- # an interrupted test may have a file of the volume, or the device, open
	unmount_all
	[ -z "$touched" ] || remove_group
	# An interrupt may come before $loop is set.
	[ -n "$loop" ] || [ -z "$made_file" ] || loop=$(losetup --noheadings --output NAME --associated "$made_file" 2>/dev/null)
	[ -z "$loop" ] || losetup --detach "$loop" || code=1
	[ -z "$made_file" ] || rm -f "$made_file"
	if [ -n "$work" ] && ! grep -q " $work/" /proc/self/mounts; then
		rm -rf "$work"
	fi
	summary
	[ "$failed" = 0 ] || code=1
	exit "$code"
}

# unmount_all unmounts all mounts below $work, in reverse order.
unmount_all() {
	[ -n "$work" ] || return 0
	awk -v dir="$work/" 'index($2, dir) == 1 { print $2 }' /proc/self/mounts | sed '1!G;h;$!d' |
		while read -r path; do
			umount "$path" || echo "# still mounted: $path"
		done
}

# remove_group removes the group, even one that an interrupt left half created. The device was blank
# before.
remove_group() {
	: >"$work/removal"
	if vgs "$group" >/dev/null 2>&1; then
		vgremove --yes --force "$group" >>"$work/removal" 2>&1
	fi
	if [ "$(pvs --noheadings -o vg_name "$device" 2>/dev/null | tr -d ' ')" = "" ] && pvs "$device" >/dev/null 2>&1; then
		pvremove --yes "$device" >>"$work/removal" 2>&1
	fi
	if pvs "$device" >/dev/null 2>&1; then
		sed 's/^/# /' "$work/removal"
		echo "# volume group $group on $device is still there: remove it with vgremove and pvremove"
		failed=$((failed + 1))
		return
	fi
	rm -rf "/var/lib/flexlvm/volumes/$group"
}

summary() {
	[ "$tests" -gt 0 ] || return 0
	echo "1..$tests"
	if [ "$failed" = 0 ]; then
		echo "# all $tests passed"
	else
		echo "# $failed of $tests FAILED"
	fi
}

trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# --- the scratch group -------------------------------------------------------

# The name is known before the directory exists, so that an interrupt in between leaves nothing.
# mkdir fails if the name exists, even as a link.
work=/var/tmp/flexlvm-smoke.$$-$(date +%s)
mkdir -m 700 "$work" || {
	refused=$work work=
	bail_out "cannot make the directory $refused"
}

# find_device sets $device to the given device, or to a loop device.
find_device() {
	[ -z "$device" ] || return 0
	[ -n "$file" ] || file=$work/disk
	[ ! -e "$file" ] || bail_out "$file exists; give the name of a file that can be made"
	made_file=$file
	truncate -s "$size_of_file" "$file" || bail_out "cannot make $file"
	loop=$(losetup --find --show "$file") || bail_out "cannot make a loop device of $file; give --device"
	device=$loop
}

# make_group creates the scratch group as people do.
make_group() { make_group_with --metadata-size 16MiB; }

# make_group_with FLAGS creates the scratch group with the driver's own command. From then on the
# device's content is the test's.
make_group_with() {
	find_device
	"$driver" vg create --dry-run "$@" --name "$group" "$device" >"$work/vg" 2>&1 || bail_out "$(cat "$work/vg")"
	touched=yes
	"$driver" vg create "$@" --name "$group" "$device" >"$work/vg" 2>&1 || bail_out "$(cat "$work/vg")"
	sed 's/^/# /' "$work/vg"
}

# drop NAME removes a volume, to free its space for the next.
drop() {
	lvremove --yes "$group/$1" >/dev/null 2>&1 || echo "# cannot remove $group/$1"
	rm -f "/var/lib/flexlvm/volumes/$group/$1"
}

# --- calls, as kubelet sends them --------------------------------------------

# options NAME SIZE [MEMBERS] prints the options of a call. MEMBERS are further members of the
# object. $rw and $namespace are kubelet's values.
options() {
	printf '{"volumeGroup":"%s","size":"%s","kubernetes.io/fsType":"","kubernetes.io/readwrite":"%s"' "$group" "$2" "$rw"
	printf ',"kubernetes.io/pvOrVolumeName":"%s","kubernetes.io/pod.name":"smoke-0"' "$1"
	printf ',"kubernetes.io/pod.namespace":"%s","kubernetes.io/pod.uid":"0f1e2d3c"' "$namespace"
	printf ',"kubernetes.io/serviceAccount.name":"default"%s}' "${3:+,$3}"
}

# expand_options prints the options of a growth, in which kubelet passes no pod.
expand_options() {
	printf '{"volumeGroup":"%s","size":"%s","kubernetes.io/fsType":"","kubernetes.io/readwrite":"rw"' "$group" "$2"
	printf ',"kubernetes.io/pvOrVolumeName":"%s"}' "$1"
}

# call ARGUMENTS calls the driver and sets $status and $message. A reply that
# breaks kubelet's rules has the status "broken".
call() {
	"$driver" "$@" >"$work/stdout" 2>"$work/stderr"
	code=$?
	status=$(sed -n 's/^{"status":"\([^"]*\)".*}$/\1/p' "$work/stdout")
	message=$(cat "$work/stdout")
	if [ -s "$work/stderr" ]; then
		status=broken message="on stderr: $(cat "$work/stderr")"
	elif [ "$(wc -l <"$work/stdout")" != 1 ]; then
		status=broken message="not one line: $message"
	elif [ "$status" = Success ] && [ $code != 0 ] || [ "$status" != Success ] && [ $code != 1 ]; then
		status=broken message="exit code $code with $message"
	fi
}

# target NAME creates a directory as kubelet does, and prints it.
target() {
	mkdir -p "$work/pods/$1" && echo "$work/pods/$1"
}

# --- results -------------------------------------------------------------------

pass() {
	tests=$((tests + 1))
	echo "ok $tests - $1"
}

flunk() {
	tests=$((tests + 1))
	failed=$((failed + 1))
	echo "not ok $tests - $1"
	[ -z "${2:-}" ] || printf '%s\n' "$2" | sed 's/^/#   /'
}

# check WHAT COMMAND… passes if the command succeeds.
check() {
	what=$1
	shift
	if out=$("$@" 2>&1); then
		pass "$what"
	else
		flunk "$what" "$* said: $out"
	fi
}

# refute WHAT COMMAND… passes if the command fails.
refute() {
	what=$1
	shift
	if out=$("$@" 2>&1); then
		flunk "$what" "$* succeeded: $out"
	else
		pass "$what"
	fi
}

# equal WHAT GOT WANTED
equal() {
	if [ "$2" = "$3" ]; then
		pass "$1"
	else
		flunk "$1" "got: $2
wanted: $3"
	fi
}

# succeeds WHAT ARGUMENTS… and fails WHAT TEXT ARGUMENTS… call the driver.
succeeds() {
	what=$1
	shift
	call "$@"
	equal "$what" "$status" Success
	[ "$status" = Success ] || echo "#   $message"
}

fails() {
	what=$1
	text=$2
	shift 2
	call "$@"
	case $status/$message in
	Failure/*"$text"*) pass "$what" ;;
	*) flunk "$what" "wanted a failure that says: $text
got: $message" ;;
	esac
}

is_mounted() { grep -q " $1 " /proc/self/mounts; }

# capacity DIRECTORY prints what df shows: size and used, in bytes.
capacity() { df -B1 --output=size,used "$1" | awk 'NR == 2 { print $1, $2 }'; }

# fill FILE writes until no space is left, to the last block: a large write that does not fit
# completely is refused completely.
fill() {
	dd if=/dev/zero of="$1" bs=$mib >"$work/dd" 2>&1
	dd if=/dev/zero of="$1" bs=4096 oflag=append conv=notrunc >>"$work/dd" 2>&1
	sync
}

# shellcheck disable=SC2034 # for the tests
mib=1048576
