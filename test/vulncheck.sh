#!/usr/bin/env bash
# Looks for known vulnerabilities in what the program calls. GOVULNDB names a mirror of the
# database. Where no database can be reached nothing is known, and this says so.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

out=$(go tool govulncheck ${GOVULNDB:+-db "$GOVULNDB"} ./... 2>&1)
code=$?
echo "$out" | tail -n 40
if [ $code -ne 0 ] && grep -qE 'fetching vulnerabilities: .*(dial tcp|no such host|connection refused|timeout)' <<<"$out"; then
	echo "govulncheck: NOT CHECKED, since the vulnerability database cannot be reached from here"
	exit 0
fi
exit $code
