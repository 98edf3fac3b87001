#!/bin/bash
# Builds User-Mode Linux for the test bed's guests from Debian's source of the
# kernel: some ten minutes on two cores.
#
# usage: build.sh OUT DEBS
#   OUT   empty directory that gets linux, release, and modules/
#   DEBS  directory that keeps the downloaded package between builds
#
# The package comes from the mirror that apt of this machine uses for Debian.
# shellcheck disable=SC2016 # apt expands what stands in '…'
set -euo pipefail
export LC_ALL=C

here=$(cd "$(dirname "$0")" && pwd)
out=$1
debs=$2
work=$out/work

say() { echo "User-Mode Linux: $*" >&2; }
die() { say "$*"; exit 1; }

read -r package version suite sum < <(grep -v '^#' "$here/source")
deb=${package}_${version}_all.deb

# download asks apt for the package with a list of sources of its own: the suite is
# not among those of this machine, and nothing of it is to be installed.
download() {
	local state=$work/apt site options
	site=$(apt-get indextargets --format '$(SITE) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
		awk '$2 == "bookworm" && $3 == "main" { print $1; exit }')
	[ -n "$site" ] || die "apt has no index of Debian's main component: run apt-get update"
	mkdir -p "$state/lists/partial" "$state/cache/archives/partial"
	echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $site $suite main" >"$state/sources.list"
	options=(-o Dir::Etc::sourcelist="$state/sources.list" -o Dir::Etc::sourceparts=-
		-o Dir::State::lists="$state/lists" -o Dir::Cache="$state/cache" -o APT::Sandbox::User=root)
	apt-get "${options[@]}" -qq update >&2 &&
		(cd "$work" && apt-get "${options[@]}" -qq download "$package=$version" >&2) &&
		mv "$work/$package"_*.deb "$debs/$deb"
}

"$here/../../setup.sh" kernel || die "a compiler or a tool is missing"
mkdir -p "$work" "$debs"
if ! echo "$sum  $debs/$deb" | sha256sum --check --status 2>/dev/null; then
	say "downloading $package $version"
	download || die "no source to be had: $package $version of $suite"
fi
echo "$sum  $debs/$deb" | sha256sum --check --status || die "$deb is not what it should be: its SHA-256 differs from test/vm/uml/source"

say "unpacking the source"
dpkg -x "$debs/$deb" "$work/package"
mkdir "$work/linux"
tar -C "$work/linux" --strip-components=1 -xf "$work/package/usr/src/$package.tar.xz"
rm -rf "$work/package"
cd "$work/linux"
for patch in "$here"/patches/*.patch; do
	patch --quiet -p1 <"$patch"
done

say "compiling (some ten minutes on two cores)"
{
	make ARCH=um defconfig
	scripts/kconfig/merge_config.sh -m .config "$here/kernel.fragment"
	make ARCH=um olddefconfig
	make ARCH=um -j"$(nproc)" linux
} >"$work/build.log" 2>&1 || {
	tail -n 20 "$work/build.log" >&2
	die "the kernel does not compile"
}

release=$(make -s ARCH=um kernelrelease)
strip -o "$out/linux" linux

# modprobe succeeds for what is built in, where it finds a list of that.
list=$work/root/lib/modules/$release
mkdir -p "$list"
{
	cat modules.builtin
	sed -e '/^#/d' -e 's|.*|kernel/none/&.ko|' "$here/modules"
} >"$list/modules.builtin"
touch "$list/modules.order"
cp modules.builtin.modinfo "$list/" 2>/dev/null || true
depmod -b "$work/root" "$release"
mv "$list" "$out/modules"
echo "$release" >"$out/release"
rm -rf "$work"
