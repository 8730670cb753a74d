#!/usr/bin/env bash
# Checks authority.pml with spin, one set of events after another, and prints what was found.
# "all" is an exhaustive search; "part" is what a search with a bit table visits in a minute.
# Ends at a property that does not hold, and at a rule that can be taken away unnoticed.
set -euo pipefail
model=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/authority.pml
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

failed=0
check() { # search, property, wanted errors (0, or any), events...
	local search=$1 property=$2 wanted=$3 flags=() compile=(-O2 -w -DMEMLIM=4000) run=(-n -m400000) result states
	shift 3
	for event in "$@"; do flags+=("-D$event"); done
	case $search in
	all) compile+=(-DCOLLAPSE) ;;
	part) compile+=(-DBITSTATE) run+=(-w31 -Q1) ;;
	esac
	case $property in
	safety) compile+=(-DSAFETY -DNOCLAIM) ;;
	both) compile+=(-DNFAIR=4) run+=(-a -f) ;; # weak fairness
	esac
	spin "${flags[@]}" -a "$model" >spin.log || { cat spin.log; exit 1; }
	gcc "${compile[@]}" -o pan pan.c
	SECONDS=0
	timeout 900 ./pan "${run[@]}" >pan.log 2>&1 || { tail pan.log; exit 1; }
	grep -q "max search depth too small\|out of memory\|reached -DMEMLIM" pan.log && { cat pan.log; exit 1; }
	states=$(awk '/states, stored/ {print $1; exit}' pan.log)
	if grep -q "errors: 0" pan.log; then
		result="holds"
		[ "$wanted" = 0 ] || { result="NOT FOUND"; failed=1; }
	else
		result="found: $(sed -n 's/^pan:1: \(.*\) (at depth.*/\1/p' pan.log | head -1 | cut -c1-40)"
		[ "$wanted" = any ] || { result="FAILS, $result"; failed=1; }
	fi
	printf '%-5s %-7s %10s %4ss  %-34s %s\n' "$search" "$property" "$states" "$SECONDS" "$*" "$result"
}

echo "safety: never two holders, epochs only grow. both: and not without a holder for ever."
printf '%-5s %-7s %10s %5s  %-34s %s\n' search property states time events result
check all both 0 LEAVE=1 CRASH BREAK
check all both 0 LEAVE=1 LEAVE2=0 BREAK
check all both 0 JOIN BREAK
check all both 0 JOIN CRASH
check all both 0 JOIN LEAVE=0
check all safety 0 JOIN LEAVE=1
check all safety 0 JOIN LEAVE=0 BREAK
check all safety 0 JOIN CRASH BREAK
check part safety 0 JOIN LEAVE=1 CRASH BREAK
echo
echo "Without a rule:"
check all safety any JOIN LEAVE=1 WITHOUT_CONSENT
check all safety any JOIN BREAK ANY_EPOCH
check all safety any JOIN BREAK THAWS
check all safety any JOIN LEAVE=1 YIELDS_FROZEN
exit $failed
