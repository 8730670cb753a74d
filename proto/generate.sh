#!/usr/bin/env bash
# Generates the Go code of every .proto file below this directory, next to its source.
# The generators are the tools that go.mod pins.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

if ! command -v protoc >/dev/null; then
	echo "generate.sh: protoc is missing; install it (Debian and Ubuntu: apt-get install -y protobuf-compiler)" >&2
	exit 1
fi

go_plugin=$(go tool -n protoc-gen-go)
grpc_plugin=$(go tool -n protoc-gen-go-grpc)
mapfile -t sources < <(find . -name '*.proto' -printf '%P\n' | sort)

protoc --proto_path=. \
	--plugin=protoc-gen-go="$go_plugin" --go_out=. --go_opt=paths=source_relative \
	--plugin=protoc-gen-go-grpc="$grpc_plugin" --go-grpc_out=. --go-grpc_opt=paths=source_relative \
	"${sources[@]}"
