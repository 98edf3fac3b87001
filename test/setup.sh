#!/bin/sh
# Makes sure that this machine has the Debian packages that the test bed needs: installs missing
# ones if it can, else lists them.
#
# usage: setup.sh [kernel|arm64|browser|prometheus|fio]
#   kernel  the packages for building a kernel, in place of the test bed's own
#   arm64   those for arm64 guests
#   browser those for viewing the page of kubectl flexlvm ui
#   prometheus those for testing that an alert fires
#   fio     those that the benchmark writes with
#
# To add a package, add a line to a list: apt's name for it, then a path that exists once it is
# installed.
set -eu

case "${1-}" in
kernel | arm64 | browser | prometheus | fio) list=$1 ;;
*) list=bed ;;
esac

arm64() {
	cat <<'LIST'
kmod               /sbin/depmod
qemu-system-arm    /usr/bin/qemu-system-aarch64
LIST
}

kernel() {
	cat <<'LIST'
bc                 /usr/bin/bc
bison              /usr/bin/bison
flex               /usr/bin/flex
gcc                /usr/bin/gcc
kmod               /sbin/depmod
libc6-dev          /usr/include/stdlib.h
make               /usr/bin/make
patch              /usr/bin/patch
xz-utils           /usr/bin/xz
LIST
}

browser() {
	cat <<'LIST'
chromium           /usr/bin/chromium
fonts-dejavu-core  /usr/share/fonts/truetype/dejavu/DejaVuSans.ttf
LIST
}

prometheus() {
	cat <<'LIST'
prometheus         /usr/bin/prometheus
LIST
}

fio() {
	cat <<'LIST'
fio                /usr/bin/fio
LIST
}

bed() {
	cat <<'LIST'
busybox-static     /bin/busybox
ca-certificates    /usr/sbin/update-ca-certificates
debian-archive-keyring /usr/share/keyrings/debian-archive-keyring.gpg
e2fsprogs          /sbin/mke2fs
gcc                /usr/bin/gcc
git                /usr/bin/git
iproute2           /sbin/ip
iptables           /usr/sbin/iptables
libc6-dev          /usr/include/stdlib.h
make               /usr/bin/make
mmdebstrap         /usr/bin/mmdebstrap
openssh-client     /usr/bin/ssh
qemu-system-x86    /usr/bin/qemu-system-x86_64
qemu-utils         /usr/bin/qemu-img
seabios            /usr/share/seabios/bios-256k.bin
shellcheck         /usr/bin/shellcheck
LIST
}

missing=$("$list" | while read -r package path; do
	[ -e "$path" ] || echo "$package"
done)
[ -n "$missing" ] || exit 0
missing=$(echo "$missing" | tr '\n' ' ' | sed -e 's/ $//')

if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
	echo "setup: these Debian packages are missing: $missing" >&2
	echo "setup: install them, or run $0 as root on Debian 12" >&2
	exit 1
fi

echo "setup: installing $missing" >&2
export DEBIAN_FRONTEND=noninteractive
install() {
	# shellcheck disable=SC2086 # a list of words
	apt-get -qq -o DPkg::Lock::Timeout=300 install -y --no-install-recommends $missing 2>&1 9>&-
}
# A timer of the system may hold the lock of the package lists.
update() {
	for pause in 5 10 20 40; do
		if apt-get -qq update 9>&-; then return; fi
		echo "setup: apt-get update failed; it is retried in $pause seconds" >&2
		sleep "$pause"
	done
	apt-get -qq update 9>&-
}
# Suites that run in parallel may each lack packages, and apt-get update does not wait for another.
# A program that a package starts must not keep the lock, hence 9>&-.
exec 9</var/lib/dpkg
flock -w 900 9 || {
	echo "setup: another one has been installing packages for 15 minutes: see who has /var/lib/dpkg locked (lslocks)" >&2
	exit 1
}
# The package index may be missing, or so old that it lists versions that are gone.
if ! install >/dev/null; then
	update
	said=$(install) || {
		echo "$said" >&2
		echo "setup: apt-get could not install: $missing" >&2
		exit 1
	}
fi
# The tests start their own Prometheus.
if [ "$list" = prometheus ] && [ -d /run/systemd/system ]; then
	systemctl --quiet disable --now prometheus
fi
