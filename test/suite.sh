#!/bin/bash
# Runs a test suite, saves its output in the cache, and prints at its end how long it took, which
# tests were the slowest, which state much too short a duration to test/schedule, and which failed.
#
# usage: suite.sh [-q] NAME COMMAND [ARG…]
#   -q  show only failures and one line for each package
set -uo pipefail

quiet=
if [ "$1" = -q ]; then
	quiet=yes
	shift
fi
name=$1
shift
log=${FLEXLVM_CACHE:-.cache}/$name.log

# show filters the output for a person, and begins each line with the suite's name, because suites
# run in parallel.
show() {
	if [ -n "$quiet" ]; then
		grep --line-buffered -E '^(ok|FAIL|panic:|nodes run on)|^ *--- FAIL'
	else
		grep --line-buffered -vE '^=== (PAUSE|CONT|NAME)'
	fi | sed -u "s/^/$name: /"
}

begun=$SECONDS
echo "== $name begins"
"$@" 2>&1 | tee "$log" | show
code=${PIPESTATUS[0]}

# The second line of `times` is for ended children: 1m2.3s 0m4.5s. A subshell has none of them.
times >"$log.times"
used=$(sed -n '2s/[ms]/ /gp' "$log.times" | awk '{ printf "%d", $1 * 60 + $2 + $3 * 60 + $4 }')
rm "$log.times"
echo "== $name took $((SECONDS - begun)) s, $used s of processor time; its slowest tests, in seconds:"
# A test with subtests takes as long as they do, so only the innermost ones are listed. A test that waited
# for its turn says itself how long it ran (see test/schedule), before go test includes its waiting time.
sed -nE 's/^ *--- (PASS|FAIL): ([^ ]+) \(([0-9.]+)s\)$/\3 \2/p; s/^ *schedule\.go:[0-9]+: ([^ ]+) ran for ([0-9.]+)s, .*/\2 \1 alone/p' "$log" | awk '
	NF == 3 { ran[$2] = $1; next }
	$2 in ran { $1 = ran[$2] }
	{ time[$2] = $1; for (at = $2; sub(/\/[^\/]*$/, "", at);) parent[at] = 1 }
	END { for (name in time) if (!(name in parent)) print time[name], name }' |
	sort -rn | head -n 10 | sed 's/^/   /'
# Parallel tests start longest first, so one that states too few seconds may end up alone at the end.
sed -nE 's/^ *schedule\.go:[0-9]+: ([^ ]+) ran for ([0-9.]+)s, .* and states ([0-9]+) s$/\1 \2 \3/p' "$log" |
	awk '$2 > 40 && 2 * $3 < $2 { print "   " $1 " states " $3 " s, and ran for " $2 " s: change it in Parallel" }'
passed=$(grep -cE '^ *--- PASS' "$log")
failed=$(grep -cE '^ *--- FAIL' "$log")
if [ "$code" = 0 ] && [ "$passed" = 0 ]; then
	echo "== $name FAILED: no test ran, so a name in its command has changed"
	exit 1
fi
if [ "$code" != 0 ]; then
	[ -z "$quiet" ] || grep -B 30 -E '^ *--- FAIL|^panic:|^FAIL.*build' "$log" | tail -n 200
	echo "== $name FAILED ($passed passed, $failed failed); all that it printed is in $log"
	grep -E '^ *--- FAIL|^panic:|^FAIL' "$log" | sed 's/^/   /'
	# A reader of only this last part still learns the reason.
	grep -A 20 -E '^ *Error Trace:|^panic:' "$log" | cut -c 1-400 | head -n 120
else
	echo "== $name: $passed passed, $failed failed"
fi
exit "$code"
