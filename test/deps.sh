#!/usr/bin/env bash
# Installs what the tests need beside Go, with the system's package manager, and says so.
# What cannot be installed is named, with the tests that are skipped for it; under CI=true
# nothing is skipped and this fails instead. "model" installs what make model needs, instead.
set -euo pipefail

as_root() {
	if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi
}

install() { # package for apt, for dnf, for brew
	if command -v apt-get >/dev/null; then
		as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq update >/dev/null &&
			as_root env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get -qq install -y --no-install-recommends "$1" >/dev/null
	elif command -v dnf >/dev/null; then
		as_root dnf -q -y install "$2"
	elif command -v brew >/dev/null; then
		brew install -q "$3"
	else
		return 1
	fi
}

if [ "${1:-}" = model ]; then
	for tool in spin gcc; do
		if ! command -v "$tool" >/dev/null; then
			echo "model: $tool is missing, installing it with the system's package manager"
			install "$tool" "$tool" "$tool" || { echo "model: $tool cannot be installed"; exit 1; }
		fi
	done
	exit
fi

if ! command -v redis-server >/dev/null; then
	echo "tests: redis-server is missing, installing it with the system's package manager"
	# The package's own service is of no use here: the tests start servers of their own.
	if ! install redis-server redis redis; then
		echo "tests: redis-server cannot be installed: the tests of Redis mode and of the policy redis are skipped"
		[ "${CI:-}" != true ] || exit 1
	fi
fi

for tool in ip:iproute2:iproute:iproute2mac nft:nftables:nftables:nftables; do
	IFS=: read -r command apt dnf brew <<<"$tool"
	if ! command -v "$command" >/dev/null && ! [ -x "/usr/sbin/$command" ]; then
		echo "tests: $command is missing, installing it with the system's package manager"
		if ! install "$apt" "$dnf" "$brew"; then
			echo "tests: $command cannot be installed: the tests of split networks are skipped"
			[ "${CI:-}" != true ] || exit 1
		fi
	fi
done

if ! docker info >/dev/null 2>&1; then
	echo "tests: no Docker engine answers: the test of docker-compose.yml is skipped"
	[ "${CI:-}" != true ] || exit 1
fi
