#!/bin/sh
# Runs all smoke tests, one after the other, on one spare device or on a file. Its options are those
# of each test: see lib.sh, or run it with --help.
set -u
here=$(dirname "$0")

case " $* " in
*" --help "* | *" -h "*)
	sh "$here/init.sh" --help | sed "s|$here/init.sh|$0|"
	exit 0
	;;
esac

bad=
trap 'exit 130' INT
trap 'exit 143' TERM HUP
for test in init mount exact expand thin refuse operator; do
	echo "# --- $test"
	if [ $test = thin ] && ! modprobe -q dm-thin-pool && [ ! -d /sys/module/dm_thin_pool ]; then
		echo "# NOT RUN: this kernel has no dm-thin-pool, so there can be no thin pools here"
		continue
	fi
	sh "$here/$test.sh" "$@" || bad="$bad $test"
done
if [ -n "$bad" ]; then
	echo "# FAILED:$bad"
	exit 1
fi
echo "# all smoke tests passed"
